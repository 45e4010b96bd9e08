"""What a feed or a drain does, told every so often by a thread while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, final

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


class Told(Protocol):
    """What was done since the record before, and so far."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        ...


W = TypeVar("W")
R = TypeVar("R", bound=Told)

To: TypeAlias = "str | os.PathLike[str] | Callable[[R], object]"
Read: TypeAlias = "Callable[[W, bool], R]"
"""Returns the record of now; the second argument says whether it is the last. Called on the report's thread."""

_JOIN_S = 5.0
"""How long the end of a report waits for a record that is being written."""


@final
class Report(Generic[W, R]):
    """Tells what something does while a block runs, on a thread of its own that never keeps it alive.

    Args:
        about: What to tell about.
        begin: Called with it when the block begins; returns what makes records, and must not hold it.
        to: A file that gets a JSON object per line, or what is called with each record.
        every_s: How often.
        kind: What it is, for messages: "the feed".

    Raises:
        UsageError: `to` is neither, or in no folder; `every_s` is not positive.
    """

    def __init__(self, about: W, begin: Callable[[W], Read[W, R]], to: To[R], every_s: float, kind: str) -> None:
        if not every_s > 0:
            raise UsageError(f"every_s is {every_s}", hint="give a positive number of seconds")
        self._begin = begin
        self._tell = _teller(to)
        self._every_s = every_s
        self._kind = kind
        self._stop = threading.Event()
        self._about = weakref.ref(about, lambda _: self._stop.set())
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        about = self._about()
        if about is not None:
            arguments = (self._about, self._begin(about), self._tell, self._stop, self._every_s, self._kind)
            self._thread = threading.Thread(target=_run, args=arguments, name="interlock-report", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _run(
    about_of: weakref.ref[W],
    read: Read[W, R],
    tell: Callable[[R], object],
    stop: threading.Event,
    every_s: float,
    kind: str,
) -> None:
    warned = False
    last = False
    while not last:
        last = stop.wait(every_s)
        record = _record(about_of, read, last=last)
        if record is None:
            return
        try:
            tell(record)
        except Exception as error:  # noqa: BLE001 - a report that fails is no reason to end what it tells about
            if not warned:
                _warn(error, kind)
            warned = True


def _record(about_of: weakref.ref[W], read: Read[W, R], *, last: bool) -> R | None:
    """Return a record, None if what it is about is gone. Holds it for no longer than that."""
    about = about_of()
    return None if about is None else read(about, last)


def _warn(error: Exception, kind: str) -> None:
    message = f"a record of {kind} could not be told: {type(error).__name__}: {error}; not said again"
    with contextlib.suppress(RuntimeWarning):  # where warnings are errors, nobody could catch it on this thread
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _teller(to: To[R]) -> Callable[[R], object]:
    if callable(to):
        return to
    if not isinstance(to, (str, os.PathLike)):
        raise UsageError(
            f"to is of type {type(to).__name__}", hint="give the path of a file, or a function of a Record"
        )
    path = Path(to)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"a report cannot go to {path}", why="it is a folder, or in none", hint="give a file")
    return lambda record: append_line(path, record.as_dict())


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append a JSON object in one call of the system: so a program that is killed leaves whole lines.

    The file is opened each time, since it may be moved away in between.

    Raises:
        OSError: The storage refused; nothing of the line is there.
    """
    line = json.dumps(values).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        written = file.write(line)
        if written != len(line):
            file.truncate(size_bytes)
            raise OSError(f"{path} took {written} of {len(line)} bytes")
