"""`interlock.trace`: record a block of a program."""

from __future__ import annotations

import itertools
import operator
import time
import warnings
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

from interlock._core._spans import Span, host_track, report
from interlock.errors import InterlockError, UsageError
from interlock.tracing._picture import Panel, draw
from interlock.tracing._reading import read
from interlock.tracing._recorder import Recorder
from interlock.tracing._streams import locate, order_behind

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from interlock._core._protocols import Device

_SETTLE_S = 60.0
_SETTLE_AFTER_ERROR_S = 2.0
"""How long the end of a block waits for work on devices that was marked; after an error it may never end."""


@final
class Trace:
    """A recording. Made by `trace`; use it in a `with` block, once.

    Attributes:
        path: The file, there when the block has ended.
        dropped: Reports that were left out, because there were too many.
    """

    def __init__(self, path: str | os.PathLike[str], *, most_spans: int) -> None:
        if most_spans < 1:
            raise UsageError(f"most_spans is {most_spans}", hint="give at least 1")
        self.path = Path(path)
        if not self.path.name:
            raise UsageError(f"the trace {str(path)!r} cannot be written", why="that is no file", hint="name a file")
        self.dropped = 0
        self._most_spans = most_spans
        self._recorder: Recorder | None = None
        self._is_whole = False
        self._numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r})"

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise UsageError("a trace records one block", hint="make another with interlock.trace")
        self._recorder = Recorder(self.path, self._most_spans)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._recorder is not None  # noqa: S101 - set on entry
        try:
            self._recorder.stop(timeout_s=_SETTLE_S if error is None else _SETTLE_AFTER_ERROR_S)
        except InterlockError as failure:
            if error is None:
                raise
            error.add_note(f"also: {failure}")
        else:
            self._is_whole = True
        self.dropped = self._recorder.dropped
        if self.dropped:
            warnings.warn(
                f"the trace {str(self.path)!r} leaves {self.dropped:,} spans out: raise most_spans to have more",
                RuntimeWarning,
                stacklevel=2,
            )

    @contextmanager
    def span(self, name: str, *, number: int | None = None, size_bytes: int = 0) -> Iterator[None]:
        """Mark host work of your own, on the calling thread.

        Args:
            name: What it is, as `step`.
            number: Which one. Default: they are counted by name.
            size_bytes: Bytes that it moves, if that says something.
        """
        number = self._number(name, number)
        size_bytes = operator.index(size_bytes)
        start_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            report(Span(host_track(), name, start_ns, time.perf_counter_ns(), number, size_bytes))

    @contextmanager
    def stream(
        self,
        stream: object,
        name: str,
        *,
        number: int | None = None,
        size_bytes: int = 0,
        device: str | Device | None = None,
    ) -> Iterator[None]:
        """Mark what is queued on a stream inside the block; the span is the time in which the device did it.

        Args:
            stream: A stream of torch or CuPy, its handle, or one of `device.stream(name)`.
            name: What it is, as `step`.
            number: Which one. Default: they are counted by name.
            size_bytes: Bytes that it moves, if that says something.
            device: Where the stream is, where it does not say so itself. Default: `cuda`.

        Raises:
            UsageError: It is no stream, or its device cannot tell times.

        Ordering:
            Two marks are queued on the stream. The host does not wait.
        """
        size_bytes = operator.index(size_bytes)
        marking, timeline = locate(stream, device)
        number = self._number(name, number)
        start = marking.mark(timeline)
        yield  # if it raises, the device may be lost: there is no span
        marking.report_between(start, marking.mark(timeline), name, size_bytes=size_bytes, number=number)

    def ready(self, value: object, name: str, *, number: int | None = None) -> None:
        """Mark work on a stream that nobody can reach, as JAX's are, by an array that the work makes.

        The span lasts from this call, or from the end of the work marked before if that is later, until the array is
        there. So where work follows work without a gap it is the time that it takes.

        Args:
            value: An array on a CUDA device, just dispatched. Not kept.
            name: What the work is, as `step`.
            number: Which one. Default: they are counted by name.

        Raises:
            UsageError: It is no array on one CUDA device.

        Ordering:
            A stream of our own is ordered behind the array's producer. The host does not wait for the array; the call
            takes some tenths of a millisecond.
        """
        marking, timeline, order = order_behind(value)
        number = self._number(name, number)
        start = marking.mark(timeline)
        order()
        marking.report_between(start, marking.mark(timeline), name, number=number)

    def _number(self, name: str, number: int | None) -> int:
        """Return a plain number, whose ever integer it was: NumPy's have no form in JSON."""
        return next(self._numbers[name]) if number is None else operator.index(number)

    def picture(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        start_ms: float | None = None,
        end_ms: float | None = None,
    ) -> None:
        """Draw a part of the finished trace as an SVG file.

        Args:
            path: The file.
            title: Shown above.
            start_ms: Where the part begins. Default: in the middle, so that some batches are shown.
            end_ms: Where it ends.

        Raises:
            UsageError: The block has not ended yet, or there is nothing in that part.
        """
        if not self._is_whole:
            raise UsageError(f"there is no trace {str(self.path)!r} yet", hint="draw it when its block has ended")
        draw([Panel(title, read(self.path))], path, start_ms=start_ms, end_ms=end_ms)


def trace(path: str | os.PathLike[str], *, most_spans: int = 1_000_000) -> Trace:
    """Record what feeds, drains and devices do inside a `with` block, for https://ui.perfetto.dev.

    The file has a track for each thread and stream, with what it did and for which batch, arrows along the way of each
    batch, and the rates of copies. It holds names, sizes and times, none of your data. Work that nobody can see from
    outside, as a step of your own, is shown where you mark it: `t.span` on the host, `t.stream` on a stream of a
    device, and `t.ready` for JAX, whose streams cannot be reached. Copies to and from JAX are shown as all others.

    Args:
        path: The file, in Chrome's trace format. It appears when the block ends, also with an exception.
        most_spans: Further spans are counted and left out; memory does not grow with their number.

    Returns:
        The recording.

    Raises:
        UsageError: On entry, if the file cannot be made.
        SinkError: On exit, if it could not be written.

    Blocks: at the end of the block, until the work that was marked is done.

    Example:
        >>> import numpy as np, tempfile, pathlib
        >>> from interlock import Feed, trace
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.json"
        >>> with trace(path) as t:
        ...     for batch in Feed(np.zeros((4, 2)), batch_size=2):
        ...         with t.span("step"):
        ...             total = batch.sum()
        >>> path.exists()
        True
    """
    return Trace(path, most_spans=most_spans)
