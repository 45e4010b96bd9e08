"""The reader of a feed: samples become rows of a slot, each in the place that its position fixes."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock.errors import InterlockError, SampleError
from interlock.feed._layout import Layout
from interlock.feed._work import Failure, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from interlock._core._pool import SlotMemory
    from interlock.feed._samples import Samples

OnError = Literal["raise", "skip"]

_BULK_PIECE_BYTES = 256 << 10
"""Below this a piece of a bulk read costs more to hand to a worker than to copy."""
_MOST_ROWS = 8
_QUICK_S = 1e-3
"""Samples that come sooner than this are handed to workers several at a time; slow ones one by one, so that no worker
is left with many."""


@final
class SampleReader:
    """Batches of samples. The order is that of the samples' positions, whatever the number of workers.

    Args:
        samples: The samples of the epoch.
        batch_size: Rows of a batch.
        workers: How many workers share a batch.
        bulk: Whether the source may read many samples at once.
        drop_last: Leave out a batch that is not full.
        on_error: What to do with a sample whose source raises.
    """

    def __init__(
        self, samples: Samples, batch_size: int, *, workers: int, bulk: bool, drop_last: bool, on_error: OnError
    ) -> None:
        self._samples = samples
        self._batch_size = batch_size
        self._workers = max(1, workers)
        self._bulk = bulk
        self._sample_s = _QUICK_S
        self._drop_last = drop_last
        self._on_error = on_error
        self._total = samples.total
        self._total_lock = threading.Lock()
        self._layout: Layout | None = None
        self._fetched: dict[int, tuple[Any, Exception | None]] = {}
        self._stopped = False

    @property
    def slot_bytes(self) -> int:
        """As in `Reader`."""
        return self._layout.size_bytes if self._layout is not None else 1

    def stop(self) -> None:
        """As in `Reader`."""
        self._stopped = True

    def plan(self, number: int) -> Work | None:
        """As in `Reader`. Blocks: for the first batch, while one sample is fetched to learn the layout."""
        start = number * self._batch_size
        if self._layout is None:
            self._learn_layout(start)
        rows = self._batch_size if self._total is None else min(self._batch_size, self._total - start)
        if rows <= 0 or (self._drop_last and rows < self._batch_size):
            return None
        return Work(number, start, rows, units=self._units(rows), layout=self._layout)

    def _units(self, rows: int) -> int:
        if self._samples.serial:
            return 1
        if not self._bulk or self._layout is None:
            most = _MOST_ROWS if self._sample_s < _QUICK_S else 1
            return -(-rows // max(1, min(most, rows // self._workers)))
        return max(1, min(self._workers, rows, self._layout.size_bytes // _BULK_PIECE_BYTES))

    def _learn_layout(self, start: int) -> None:
        """Fetch the first sample that the source can give; all others must look like it."""
        for position in range(start, start + self._batch_size):
            if self._total is not None and position >= self._total:
                return
            try:
                sample = self._samples.fetch(position)
                self._layout = Layout.of_sample(sample, self._batch_size)
            except StopIteration:
                self._end_at(position)
            except Exception as error:  # noqa: BLE001 - kept for the worker that comes to this sample
                self._fetched[position] = (None, error)
                if self._on_error == "raise":
                    return
            else:
                if not self._bulk:
                    self._fetched[position] = (sample, None)
                return

    def run(self, work: Work, unit: int, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`: a piece is a run of samples."""
        first, last = work.rows * unit // work.units, work.rows * (unit + 1) // work.units
        if not (self._bulk and work.layout is not None and self._run_bulk(work, first, last, memory)):
            self._run_each(work, range(first, last), memory)

    def _run_bulk(self, work: Work, first: int, last: int, memory: Callable[[int], SlotMemory]) -> bool:
        began = time.perf_counter()
        layout = work.layout
        assert layout is not None  # noqa: S101 - checked by the caller
        out = layout.structure.rebuild([view[first:last] for view in work.views(memory)])
        try:
            done = self._samples.read_into(work.start + first, work.start + last, out)
        except Exception:  # noqa: BLE001 - one of many: going through them one by one says which
            return False
        if done:
            work.count(time.perf_counter() - began, 0.0, [])
        return done

    def _run_each(self, work: Work, rows: range, memory: Callable[[int], SlotMemory]) -> None:
        """Make rows one by one. Each sample is copied before the next is asked for, so a source may recycle memory."""
        clock, layout = time.perf_counter, work.layout
        fetch_s = copy_s = 0.0
        errors: list[tuple[int, Exception]] = []
        for row in rows:
            position = work.start + row
            if self._stopped or (self._total is not None and position >= self._total):
                break
            began = fetched = clock()
            try:
                sample = self._fetch(position)
                fetched = clock()
                if layout is not None:
                    layout.write(work.views(memory), row, sample)
            except StopIteration:
                self._end_at(position)
                break
            except Exception as error:  # noqa: BLE001 - concerns this sample
                errors.append((row, error))
            fetch_s += fetched - began
            copy_s += clock() - fetched
            if errors and self._on_error == "raise":
                break
        self._sample_s = fetch_s / len(rows)
        work.count(fetch_s, copy_s, errors)

    def _fetch(self, position: int) -> Any:
        sample, error = self._fetched.pop(position, (None, None))
        if error is not None:
            raise error
        return self._samples.fetch(position) if sample is None else sample

    def _end_at(self, position: int) -> None:
        with self._total_lock:
            self._total = position if self._total is None else min(position, self._total)

    def finish(self, work: Work, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`: cuts the batch at the end of the epoch and closes the gaps that failed samples left.

        Raises:
            SampleError: A sample failed and `on_error` is "raise": the first one in the batch's order.
        """
        if self._total is not None:
            work.rows = max(0, min(work.rows, self._total - work.start))
        if self._drop_last and work.rows < self._batch_size:
            work.rows = 0
        work.errors = sorted((entry for entry in work.errors if entry[0] < work.rows), key=lambda entry: entry[0])
        if work.errors and self._on_error == "raise":
            row, error = work.errors[0]
            raise _sample_error(self._samples.index_at(work.start + row), error)
        if work.errors:
            self._close_gaps(work, memory)
        work.trim = work.rows
        work.void = work.rows == 0
        if work.layout is not None:
            row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in work.layout.leaves)
            work.nbytes = work.rows * row_bytes

    @staticmethod
    def _close_gaps(work: Work, memory: Callable[[int], SlotMemory]) -> None:
        work.kept = np.delete(np.arange(work.rows), [row for row, _ in work.errors])
        work.rows = len(work.kept)
        if work.rows:
            for view in work.views(memory):
                view[: work.rows] = view[work.kept]

    def ids(self, work: Work) -> npt.NDArray[Any]:
        """Return the ids of a finished batch, int64 or Unicode, shape (rows,)."""
        rows = np.arange(work.rows) if work.kept is None else work.kept
        return self._samples.ids(work.start + rows)

    def failures(self, work: Work) -> list[Failure]:
        """Return what was left out of a finished batch."""
        rows = np.array([row for row, _ in work.errors], dtype=np.intp)
        ids = self._samples.ids(work.start + rows) if work.errors else rows
        return [
            Failure(self._samples.index_at(work.start + row), sample_id, _reason(error))
            for (row, error), sample_id in zip(work.errors, ids.tolist(), strict=True)
        ]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InterlockError) else f"{type(error).__name__}: {error}"


def _sample_error(index: int, error: Exception) -> SampleError:
    if isinstance(error, SampleError):
        return error
    if isinstance(error, InterlockError):
        found = SampleError(f"sample {index}: {error.what}", index=index, why=error.why, hint=error.hint)
    else:
        found = SampleError(f"sample {index} could not be read", index=index, why=f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found
