"""Spans of time for a trace: who did what from when to when. Costs one truth test while nobody listens.

Kept apart from `_events`, which say what happened to memory and in what order: spans say how long things took, and only
a picture needs them.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._fence import Fence, Timeline


@final
@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        track: Who: `host:interlock-feed-0` (see `host_track`), `cuda:0/feed`.
        name: What, in a word or two: `fill`, `copy in`, `wait`.
        start_ns: On the clock of `time.perf_counter_ns`.
        end_ns: The same clock.
        number: Which batch, put or shard; -1 where that says nothing.
        size_bytes: Bytes moved; 0 where that says nothing.
        subject: Whose number that is: `feed 1`, `drain 2`; empty where that says nothing.
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    number: int = -1
    size_bytes: int = 0
    subject: str = ""


@final
@dataclass(frozen=True, slots=True)
class Level:
    """How much of something there is from now on.

    Attributes:
        track: Of what: `feed 1`.
        name: What is counted: `batches lent`.
        at_ns: On the clock of `time.perf_counter_ns`.
        value: The count.
    """

    track: str
    name: str
    at_ns: int
    value: float


Report: TypeAlias = Span | Level

_listeners: tuple[Callable[[Report], None], ...] = ()
_lock = threading.Lock()


def listen(listener: Callable[[Report], None]) -> Callable[[], None]:
    """Call `listener` with every report from now on, on the thread that makes it. It must not block or raise.

    Returns:
        A function that ends it; calling it twice does nothing.
    """
    global _listeners  # noqa: PLW0603 - one tuple, replaced whole, so that reporting takes no lock
    with _lock:
        _listeners = (*_listeners, listener)

    def remove() -> None:
        global _listeners  # noqa: PLW0603
        with _lock:
            _listeners = tuple(one for one in _listeners if one is not listener)

    return remove


def traced() -> bool:
    """Tell whether anybody listens, so that hot paths need not take times for nobody."""
    return bool(_listeners)


def report(what: Report) -> None:
    """Hand `what` to every listener."""
    for listener in _listeners:
        listener(what)


def host_track() -> str:
    """Return the track of the calling thread. Ours are called by their kind: the rest of the name may be a path."""
    name = threading.current_thread().name
    return f"host:{name.partition(' ')[0] if name.startswith('interlock-') else name}"


# ------------------------------------------------------------ what work is for


class _Current(threading.local):
    about: tuple[str, int] = ("", -1)


_current = _Current()


@final
class about:  # noqa: N801 - reads as a statement: `with about(subject, number):`
    """Say for what batch or put the calling thread queues work inside the block; devices put it on their spans.

    Args:
        subject: As in `Span`.
        number: As in `Span`.
    """

    __slots__ = ("_about", "_before")

    def __init__(self, subject: str, number: int) -> None:
        self._about = (subject, number)
        self._before = _current.about

    def __enter__(self) -> None:
        self._before, _current.about = _current.about, self._about

    def __exit__(self, *_: object) -> None:
        _current.about = self._before


def current() -> tuple[str, int]:
    """Return subject and number of what the calling thread works for; `("", -1)` if nobody said."""
    return _current.about


def timed(work: Callable[[], None], track: str, name: str, size_bytes: int = 0) -> Callable[[], None]:
    """Return `work` so that it reports a span when it runs, for what the calling thread works for now.

    If nobody listens now, that is `work` itself.
    """
    if not _listeners:
        return work
    subject, number = _current.about

    def run() -> None:
        start_ns = time.perf_counter_ns()
        work()
        report(Span(track, name, start_ns, time.perf_counter_ns(), number, size_bytes, subject))

    return run


def copy_name(*, from_device: bool, to_device: bool) -> str:
    """Return what a copy is called in a trace."""
    return "copy" if from_device == to_device else "copy in" if to_device else "copy out"


# ------------------------------------------------------------ spans that are known later


@runtime_checkable
class Marks(Protocol):
    """A device that can tell when its streams came to a point."""

    def mark(self, stream: Timeline) -> Any:
        """Return a mark behind what is queued on `stream` so far. Does not wait."""
        ...

    def report_between(self, start: Any, end: Any, name: str, *, size_bytes: int = 0, number: int = -1) -> None:
        """Report the span between two marks of one stream, on its track, once both are reached. Does not wait."""
        ...

    def report_due(self) -> None:
        """Report what is known by now. Never blocks."""
        ...

    def unreported(self) -> Fence:
        """Return the fence behind what is not known yet."""
        ...


_late: weakref.WeakSet[Marks] = weakref.WeakSet()


def expect(device: Marks) -> None:
    """Have `device` asked for what is due, by whoever listens."""
    with _lock:
        _late.add(device)


def expected() -> tuple[Marks, ...]:
    """Return the devices that may have something to report."""
    with _lock:
        return tuple(_late)
