"""Spans of time for a trace: who did what from when to when. Costs one truth test while nobody listens.

Kept apart from `_events`, which say what happened to memory and in what order: spans say how long things took, and only
a picture needs them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable


@final
@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        track: Who: `host:feed worker 0`, `cuda:0/feed`.
        name: What, in a word or two: `fill`, `copy`, `wait`.
        start_ns: On the clock of `time.perf_counter_ns`.
        end_ns: The same clock.
        number: Which batch, put or shard; -1 where that says nothing.
        size_bytes: Bytes moved; 0 where that says nothing.
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    number: int = -1
    size_bytes: int = 0


_listeners: tuple[Callable[[Span], None], ...] = ()
_lock = threading.Lock()


def listen(listener: Callable[[Span], None]) -> Callable[[], None]:
    """Call `listener` with every span from now on, on the thread that reports it. It must not block or raise.

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


def report(span: Span) -> None:
    """Hand `span` to every listener."""
    for listener in _listeners:
        listener(span)
