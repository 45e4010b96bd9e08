"""CUDA streams as timelines: ticks are events, polled; what no event can order is held back on the host."""

from __future__ import annotations

import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from interlock._core._fence import Fence
from interlock._core._spans import current, traced
from interlock.devices._cuda_memory import CudaMemory, DeviceBlock
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._fence import Timeline
    from interlock._core._protocols import Memory
    from interlock.devices._cuda_context import CudaContext, EventPool, PooledEvent
    from interlock.devices._cuda_spans import Stopwatch

_COPIES_PER_MARK = 64
"""After so many copies without a record the stream records by itself, so that it holds no memory for ever."""

_TICKS_PER_LOOK = 4
"""After so many records one asks how far the driver is; who polls asks anyway."""

_NEVER = sys.maxsize

LEGACY = 1
"""The handle of the default stream; 0 means it too."""

PER_THREAD = 2
"""The handle that means another stream on each thread."""

_OF_CONTEXT = frozenset({0, LEGACY, PER_THREAD})
"""Handles that mean a stream of whatever context is current."""


@final
class Mark:
    """A tick of a stream, and its event. Who holds the mark keeps the event from being used for anything else.

    Attributes:
        tick: The tick.
        event: Its event.
        issued: Whether the event is in the stream yet.
    """

    __slots__ = ("event", "issued", "tick")

    def __init__(self, tick: int, event: PooledEvent) -> None:
        self.event = event
        self.tick = tick
        self.issued = False


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on its way into a stream.

    Attributes:
        target: Where to.
        source: Where from; the same number of bytes.
        name: For a trace.
        call: The driver's function and its arguments but the stream.
        tick: The first tick that comes after it.
        about: Whose copy it is, for a trace; None while nobody traces.
    """

    target: Memory
    source: Memory
    name: str
    call: tuple[Any, ...]
    tick: int
    about: tuple[str, int] | None


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that cannot be put into the stream yet."""

    points: tuple[tuple[Timeline, int], ...]


_Held: TypeAlias = Copy | Wait | Mark


@final
class CudaStream:
    """A stream of a CUDA device. Safe to use from several threads.

    Args:
        name: Name of the timeline.
        raw: The driver's stream.
        context: Of the device.
        events: Where its events come from.
        stopwatch: Takes times for a trace.
        adopted: Whether somebody else queues on it too: then nothing can be held back, since they would not be.

    Attributes:
        raw: As given.
        context: As given.
        adopted: As given.
    """

    def __init__(
        self, name: str, raw: Any, context: CudaContext, events: EventPool, stopwatch: Stopwatch, *, adopted: bool
    ) -> None:
        self._name = name
        self.raw = raw
        self.adopted = adopted
        self.context = context
        self._events = events
        self._stopwatch = stopwatch
        self._has_handle = int(raw) not in _OF_CONTEXT
        self._thread = threading.get_ident() if int(raw) == PER_THREAD else None
        self._may_be_captured = adopted and int(raw) != LEGACY
        self._lock = threading.RLock()
        self._tick = 0
        self._done = 0
        self._unmarked = 0
        self._marks: deque[Mark] = deque()
        self._held: deque[_Held] = deque()
        self._kept: deque[tuple[int, Memory, Memory]] = deque()
        self._cause: BaseException | None = None
        self._failed_from = _NEVER

    def __repr__(self) -> str:
        return f"CudaStream({self._name!r}, done={self._done}, recorded={self._tick})"

    # ------------------------------------------------------------ as a timeline

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def reached(self, tick: int, *, waiting: bool = False) -> bool:
        """As in `Timeline`: asks the driver, once, and lets go on what was held back."""
        if self.is_past(tick):
            return True
        self.advance(waiting=waiting)
        self.collect()
        return self.is_past(tick)

    def is_past(self, tick: int) -> bool:
        """Tell whether `tick` is known to be done or failed, without asking the driver."""
        return tick <= self._done or tick >= self._failed_from or self.context.lost is not None

    def failure(self, tick: int) -> BaseException | None:
        """As in `Timeline`."""
        if tick <= self._done:
            return None
        return self._cause if tick >= self._failed_from else self.context.lost

    def notify(self, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - part of the protocol
        """As in `Timeline`; always False: the driver must be asked."""
        return False

    # ------------------------------------------------------------ what is put in

    def record(self) -> int:
        """Return the tick that is reached when everything put in so far is done."""
        self._check()
        with self._lock:
            tick = self._tick + 1
            if tick < self._failed_from:
                mark = Mark(tick, self._events.take())
                self._put(mark)
                self._marks.append(mark)
            self._tick = tick
            self._unmarked = 0
        if tick % _TICKS_PER_LOOK == 0:
            self.collect()
        return tick

    def copy(self, target: Memory, source: Memory, name: str, call: tuple[Any, ...]) -> None:
        """Put a copy in; both memories are kept until it is done.

        Args:
            target: Where to.
            source: Where from.
            name: For a trace.
            call: The driver's function and its arguments but the stream.
        """
        self._check()
        for memory in (target, source):
            if isinstance(memory, CudaMemory) and isinstance(memory.owner, DeviceBlock):
                self._come_after_birth(memory.owner)
        with self._lock:
            if self._tick + 1 >= self._failed_from:
                return
            self._put(Copy(target, source, name, call, self._tick + 1, current() if traced() else None))
            self._unmarked += 1
            crowded = (
                self.adopted or self._unmarked >= _COPIES_PER_MARK
            )  # later the owner may have destroyed its stream
        if crowded:
            self.record()

    def wait(self, fence: Fence) -> None:
        """Let what is put in from now on come after `fence`.

        Raises:
            UsageError: The stream is another library's, and the fence is one that only the host can see.
            DeviceError: The stream is another library's, and the fence has failed.
        """
        self._check()
        points = tuple((timeline, tick) for timeline, tick in fence.points if timeline is not self)
        if not points:
            return
        ways = _ways(points, waiting=False)
        if self.adopted:
            self._go_adopted(ways, fence)
            return
        with self._lock:
            if self._tick + 1 >= self._failed_from:
                return
            if self._held or ways is None:
                self._held.append(Wait(points))
            else:
                self._go(ways)

    def _come_after_birth(self, block: DeviceBlock) -> None:
        for timeline, tick in block.born.points:
            if timeline.reached(tick):
                block.born = Fence.EMPTY
            else:
                self.wait(block.born)

    def _go_adopted(self, ways: _Ways, fence: Fence) -> None:
        if ways is None:
            raise UsageError(
                f"{self._name} cannot wait for {fence!r}",
                why="another library queues on that stream, and the fence is not on a device yet",
                hint="wait for the fence on the host first",
            )
        if isinstance(ways, BaseException):
            raise DeviceError(f"what {self._name} was to wait for failed", why=str(ways)) from ways
        with self._lock:
            self._go(ways)

    def _check(self) -> None:
        if self.context.lost is not None:
            raise self.context.gone()
        if self._thread is not None and self._thread != threading.get_ident():
            raise UsageError(
                f"{self._name} is the default stream of another thread",
                hint="use it on the thread that adopted it, or pass an explicit stream",
            )
        if self.is_captured():
            raise UsageError(
                f"a graph is being captured on {self._name}",
                why="what is put into it runs at each replay, and nobody can tell when",
                hint="hand batches over and put outputs outside the capture",
            )

    def is_captured(self) -> bool:
        """Tell whether a graph is being captured on the stream, which somebody else must have begun."""
        if not self._may_be_captured:
            return False
        code, status = self.context.api.cuStreamIsCapturing(self.raw)
        return code == self.context.api.CUresult.CUDA_SUCCESS and int(status) != 0

    # ------------------------------------------------------------ what goes on to the driver (under the lock)

    def _put(self, item: Copy | Mark) -> None:
        if self._held:
            self._held.append(item)
        else:
            self._issue(item)

    def _issue(self, item: Copy | Mark) -> None:
        if isinstance(item, Mark):
            self._ask(self.context.api.cuEventRecord, item.event.raw, self.raw)
            item.issued = True
            return
        start = self._stopwatch.mark(self) if item.about is not None else None
        self._kept.append((item.tick, item.target, item.source))  # first: an interrupt may come right behind the call
        self._ask(*item.call, self.raw)
        if start is not None and item.about is not None:
            (subject, number), size_bytes = item.about, item.target.size_bytes
            end = self._stopwatch.mark(self)
            self._stopwatch.report_between(start, end, item.name, size_bytes=size_bytes, number=number, subject=subject)

    def _ask(self, function: Any, *arguments: Any) -> None:
        if self.context.is_needed(for_own_streams=self._has_handle):
            with self.context:
                self.context.ask(function, *arguments)
        else:
            self.context.ask(function, *arguments)

    def _go(self, ways: list[Mark] | BaseException) -> None:
        if isinstance(ways, BaseException):
            self._fail(ways)
            return
        for mark in ways:
            self._ask(self.context.api.cuStreamWaitEvent, self.raw, mark.event.raw, 0)

    def _fail(self, cause: BaseException, *, all_marks: bool = False) -> None:
        """Let every tick that is not in the stream yet fail, or all; what was held back is never done."""
        while self._marks and (all_marks or not self._marks[-1].issued):
            self._marks.pop()
        self._cause = cause
        self._failed_from = self._marks[-1].tick + 1 if self._marks else self._done + 1
        self._held.clear()

    # ------------------------------------------------------------ progress

    def issued(self, tick: int) -> Mark | None:
        """Return the mark of a tick, if it is in the stream and not known to be reached."""
        with self._lock:
            position = tick - self._marks[0].tick if self._marks else -1
            mark = self._marks[position] if 0 <= position < len(self._marks) else None
        return mark if mark is not None and mark.issued else None

    def advance(self, *, waiting: bool) -> None:
        """Put in what was held back, as far as what it waits for is on a device, or reached."""
        while self._held and (self._thread is None or self._thread == threading.get_ident()):
            with self._lock:
                head = self._held[0] if self._held else None
            if not isinstance(head, Wait):
                return  # another thread is at it
            ways = _ways(head.points, waiting=waiting)  # without our lock: it may ask streams that wait for us
            if ways is None:
                return
            with self._lock:
                if self._held and self._held[0] is head:
                    self._held.popleft()
                    self._release(ways)

    def _release(self, ways: list[Mark] | BaseException) -> None:
        try:
            self._go(ways)
            while self._held and not isinstance(self._held[0], Wait):
                item = self._held.popleft()
                assert not isinstance(item, Wait)  # noqa: S101 - as the loop says
                self._issue(item)
        except Exception as error:  # noqa: BLE001 - kept as the state of the timeline, shown to every waiter
            self._fail(error)

    def collect(self) -> None:
        """Take in which ticks are done, and let go of what they kept. Never blocks."""
        if self._marks and self.context.lost is None:
            gone: list[object] = []  # let go of without the lock: what owners do when they end is not ours to know
            mode = self.context.relax()
            with self._lock:
                self._take_in(gone)
            self.context.restore(mode)
            del gone
        self._stopwatch.collect()

    def _take_in(self, gone: list[object]) -> None:
        known, query = self.context.api.CUresult, self.context.api.cuEventQuery
        while self._marks and self._marks[0].issued:
            code = query(self._marks[0].event.raw)[0]
            if code == known.CUDA_ERROR_NOT_READY:
                break
            if code != known.CUDA_SUCCESS:
                self._fail(self.context.error_of(code, "cuEventQuery"), all_marks=True)
                break
            mark = self._marks.popleft()
            gone.append(mark)
            self._done = mark.tick
        while self._kept and self._kept[0][0] <= self._done:
            gone.append(self._kept.popleft())

    def busy(self) -> bool:
        """Tell whether the driver has work of ours left; what is held back on the host does not count. Never blocks."""
        if self.context.lost is not None:
            return False
        if self._unmarked and self._thread in {None, threading.get_ident()}:
            self.record()
        self.reached(self._tick, waiting=True)
        return bool(self._marks) and self._marks[0].issued


_Ways: TypeAlias = list[Mark] | BaseException | None
"""Events to wait for; or why there is no use in it; or None if there is no saying yet."""


def _ways(points: tuple[tuple[Timeline, int], ...], *, waiting: bool) -> _Ways:
    """Ask how a stream can come after `points`. The caller holds no lock."""
    marks: list[Mark] = []
    for timeline, tick in points:
        mark = _mark_of(timeline, tick, waiting=waiting) if isinstance(timeline, CudaStream) else None
        if mark is not None:
            marks.append(mark)
        elif not (
            timeline.is_past(tick) if isinstance(timeline, CudaStream) else timeline.reached(tick, waiting=waiting)
        ):
            return None
        else:
            cause = timeline.failure(tick)
            if cause is not None:
                return cause
    return marks


def _mark_of(stream: CudaStream, tick: int, *, waiting: bool) -> Mark | None:
    """Return the event of a tick, if there is one to wait for.

    A stream whose event is there already is not asked to go on: so two streams that wait for each other in turns do not
    ask each other for ever. One whose event is not yet there cannot hang on us, since we come after it.
    """
    mark = stream.issued(tick)
    if mark is None and not stream.is_past(tick):
        stream.advance(waiting=waiting)
        mark = stream.issued(tick)
    return mark
