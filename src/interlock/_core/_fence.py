"""Fences: points on timelines, joined by maximum.

A timeline is anything with an order of its own (a stream, a host thread, one asynchronous result). It counts *ticks*;
tick `n` is reached when everything up to it is done. A fence names a tick on each of some timelines. The empty fence
needs no wait. A timeline that failed makes every fence on it fail, and each waiter sees the cause.

Nothing here blocks: `Fence.poll` asks, `interlock._waiting.wait` waits.

Source: IREE `hal/fence.h` and `hal/semaphore.h` for the model (timeline semaphores, join, failure as a state).
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, ClassVar, Protocol, final, runtime_checkable

from interlock._core._events import HostWait, emit, host_timeline, observed
from interlock._core._sites import here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from interlock._core._events import Points

_failed_numbers = itertools.count(1)


@runtime_checkable
class Timeline(Protocol):
    """Something with an order of its own."""

    @property
    def name(self) -> str:
        """A short name, unique while the timeline lives; reports show it."""
        ...

    def reached(self, tick: int, *, waiting: bool = False) -> bool:
        """Tell whether everything up to `tick` is done or has failed; never blocks.

        Args:
            tick: The point asked for.
            waiting: A host thread can do nothing until this point is reached. A timeline whose progress is decided by a
                schedule (the simulated device) takes this as the moment to make some.
        """
        ...

    def failure(self, tick: int) -> BaseException | None:
        """Return why `tick` will never be reached, or None."""
        ...

    def notify(self, wake: Callable[[], None]) -> bool:
        """Ask for one call of `wake` at the next change.

        Returns:
            False if this timeline cannot tell and must be polled.
        """
        ...


@final
class HostTimeline:
    """A timeline whose ticks host code reaches by hand.

    Args:
        name: Shown in reports.
    """

    __slots__ = ("_cause", "_lock", "_name", "_next", "_reached", "_wakers")

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = 0
        self._reached = 0
        self._cause: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"HostTimeline({self._name!r}, reached={self._reached}, next={self._next})"

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def next_tick(self) -> int:
        """Return a tick after all that were given out so far."""
        with self._lock:
            self._next += 1
            return self._next

    def reach(self, tick: int) -> None:
        """Say that everything up to `tick` is done; going back does nothing, nor does a tick after the failure."""
        self._change(tick, None)

    def fail(self, cause: BaseException) -> None:
        """Say that no tick after the last one reached will ever come; the first cause stays."""
        self._change(self._reached, cause)

    def _change(self, tick: int, cause: BaseException | None) -> None:
        with self._lock:
            if self._cause is None:  # what failed stays failed, whatever is said later
                self._reached = max(self._reached, tick)
                self._cause = cause
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def reached(self, tick: int, *, waiting: bool = False) -> bool:  # noqa: ARG002 - part of the protocol
        """As in `Timeline`."""
        return self._reached >= tick or self._cause is not None

    def failure(self, tick: int) -> BaseException | None:
        """As in `Timeline`: a tick that was reached before the failure did not fail."""
        return self._cause if self._reached < tick else None

    def notify(self, wake: Callable[[], None]) -> bool:
        """As in `Timeline`; always True."""
        with self._lock:
            self._wakers.append(wake)
        return True


@final
class Fence:
    """A tick on each of some timelines. Immutable; may be polled and waited on any number of times, by anybody.

    Args:
        points: The ticks. For a timeline named twice the later tick counts.
    """

    __slots__ = ("_points",)

    EMPTY: ClassVar[Fence]
    """The fence that needs no wait."""

    def __init__(self, points: Iterable[tuple[Timeline, int]] = ()) -> None:
        latest: dict[int, tuple[Timeline, int]] = {}
        for timeline, tick in points:
            known = latest.get(id(timeline))
            if known is None or known[1] < tick:
                latest[id(timeline)] = (timeline, tick)
        self._points = tuple(latest.values())

    def __repr__(self) -> str:
        inside = ", ".join(f"{timeline.name}@{tick}" for timeline, tick in self._points)
        return f"Fence({inside})"

    @classmethod
    def failed(cls, cause: BaseException) -> Fence:
        """Return a fence that has failed already."""
        timeline = HostTimeline(f"failed:{next(_failed_numbers)}")
        tick = timeline.next_tick()
        timeline.fail(cause)
        return cls([(timeline, tick)])

    def join(self, *others: Fence) -> Fence:
        """Return the fence that is reached when this one and all the others are."""
        if not any(other.points for other in others):
            return self
        return Fence([point for fence in (self, *others) for point in fence.points])

    @property
    def points(self) -> tuple[tuple[Timeline, int], ...]:
        """The timelines and ticks, each timeline once."""
        return self._points

    def plain(self) -> Points:
        """Return the points as plain values, for events."""
        return tuple((timeline.name, tick) for timeline, tick in self._points)

    def poll(self, *, waiting: bool = False) -> bool:
        """Tell whether all points are reached or have failed. Never blocks.

        Args:
            waiting: As in `Timeline.reached`.
        """
        # No short cut: with `waiting`, every timeline must hear that it is waited for.
        answers = [timeline.reached(tick, waiting=waiting) for timeline, tick in self._points]
        if not all(answers):
            return False
        if self._points and observed() and self.failure() is None:
            # A host that asked and heard yes is ordered behind the fence as one that waited is.
            emit(HostWait(host_timeline(), self.plain(), here()))
        return True

    def failure(self) -> BaseException | None:
        """Return the cause of the first point that failed, or None."""
        for timeline, tick in self._points:
            cause = timeline.failure(tick)
            if cause is not None:
                return cause
        return None


Fence.EMPTY = Fence()
