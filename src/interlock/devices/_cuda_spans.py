"""Times of what happens on a CUDA device, for a trace: pairs of events, read when both are done."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._spans import Span, report
from interlock.devices._cuda_context import EventPool

if TYPE_CHECKING:
    from interlock.devices._cuda_context import CudaContext, PooledEvent
    from interlock.devices._cuda_stream import CudaStream

_LONGEST_NS = 10_000_000_000
"""The driver gives times as 32-bit floats: after so long one base is no longer exact to a microsecond."""

_MOST_PENDING = 65_536

_CLOSE_NS = 20_000
"""Two looks at an idle stream are as near as that, unless the thread or the process had to make room for others."""

_LONGEST_COMPARISON_NS = 200_000_000
"""What other processes' turns on the device may take."""


@final
@dataclass(frozen=True, slots=True)
class _Base:
    """A moment that both clocks know.

    Attributes:
        event: Names it on the device's clock.
        at_ns: When it was on the host's, in the middle of what it can have been.
        spread_ns: How long that is.
    """

    event: PooledEvent
    at_ns: int
    spread_ns: int


@final
@dataclass(frozen=True, slots=True)
class TimeMark:
    """A point of a stream whose time will be known.

    Attributes:
        stream: The stream.
        event: Its event.
        base: What its time is counted from.
    """

    stream: CudaStream
    event: PooledEvent
    base: _Base


@final
@dataclass(frozen=True, slots=True)
class _Pending:
    """A span whose times are not known yet.

    Attributes:
        tick: Of its stream, behind its end; None where the stream can be asked for one later, as our own can. Others
            may be destroyed by then.
    """

    tick: int | None
    start: TimeMark
    end: TimeMark
    name: str
    size_bytes: int
    number: int
    subject: str


@final
class Stopwatch:
    """Takes times on one device's streams, and reports them as spans when they are known.

    A base event on an idle stream ties the device's clock to the host's, to within some microseconds.

    Args:
        context: Of the device.
        clock: The driver's stream for base events; nothing else is queued there.
    """

    def __init__(self, context: CudaContext, clock: Any) -> None:
        self._context = context
        self._clock = clock
        self._events = EventPool(context, timed=True)
        self._base: _Base | None = None
        self._pending: list[_Pending] = []
        self._lock = threading.Lock()
        self._collecting = threading.Lock()

    def mark(self, stream: CudaStream) -> TimeMark:
        """Take the time at this point of a stream's order. What was held back comes later, and is not timed with it."""
        event = self._events.take()
        base = self._current_base()
        with self._context:
            self._context.ask(self._context.api.cuEventRecord, event.raw, stream.raw)
        return TimeMark(stream, event, base)

    def report_between(
        self, start: TimeMark, end: TimeMark, name: str, *, size_bytes: int, number: int, subject: str = ""
    ) -> None:
        """Report a span from `start` to `end` once both times are known."""
        tick = end.stream.record() if end.stream.adopted else None
        with self._lock:
            self._pending.append(_Pending(tick, start, end, name, size_bytes, number, subject))
            del self._pending[:-_MOST_PENDING]

    def collect(self) -> None:
        """Report what is known by now, for each stream in its order. Never blocks."""
        if not self._pending or self._context.lost is not None or not self._collecting.acquire(blocking=False):
            return
        try:
            with self._context:
                due = self._due()
                for known in due:
                    self._report(known)
            with self._lock:
                reported = set(map(id, due))
                self._pending = [one for one in self._pending if id(one) not in reported]
        finally:
            self._collecting.release()

    def _due(self) -> list[_Pending]:
        due: list[_Pending] = []
        late: set[CudaStream] = set()
        for one in tuple(self._pending):
            stream = one.end.stream
            if stream not in late and self._is_done(one.end.event) and self._is_done(one.start.base.event):
                due.append(one)
            else:
                late.add(stream)
        return due

    def late(self) -> dict[CudaStream, int | None]:
        """Return the streams of the spans that are not known yet, with the last tick behind one if it has one."""
        return {} if self._context.lost is not None else {one.end.stream: one.tick for one in tuple(self._pending)}

    def _report(self, known: _Pending) -> None:
        start_ns, end_ns = self._time_of(known.start), self._time_of(known.end)
        track = known.end.stream.name
        report(Span(track, known.name, start_ns, end_ns, known.number, known.size_bytes, known.subject))

    def _time_of(self, mark: TimeMark) -> int:
        elapsed_ms: float = self._context.ask(self._context.api.cuEventElapsedTime, mark.base.event.raw, mark.event.raw)
        return mark.base.at_ns + round(elapsed_ms * 1e6)

    def _current_base(self) -> _Base:
        base = self._base
        if base is None or time.perf_counter_ns() - base.at_ns > _LONGEST_NS:
            with self._context:
                self._base = base = self._compare_clocks()  # the old one lives on in the marks that need it
        return base

    def _compare_clocks(self) -> _Base:
        """Return the best of some comparisons; one that is close is good enough. Blocks: some tens of microseconds."""
        deadline_ns = time.perf_counter_ns() + _LONGEST_COMPARISON_NS
        best = base = self._compare_once(deadline_ns)
        while best.spread_ns > _CLOSE_NS and base.at_ns < deadline_ns:
            base = self._compare_once(deadline_ns)
            best = min(best, base, key=lambda one: one.spread_ns)
        return best

    def _compare_once(self, deadline_ns: int) -> _Base:
        """Record an event on an idle stream, and look until it is reached: that was between two looks."""
        event = self._events.take()
        earliest_ns = asked_ns = time.perf_counter_ns()
        self._context.ask(self._context.api.cuEventRecord, event.raw, self._clock)
        while not self._is_done(event):
            earliest_ns, asked_ns = asked_ns, time.perf_counter_ns()
            if asked_ns > deadline_ns:
                return _Base(event, asked_ns, _LONGEST_COMPARISON_NS)
        latest_ns = time.perf_counter_ns()
        return _Base(event, (earliest_ns + latest_ns) // 2, latest_ns - earliest_ns)

    def _is_done(self, event: PooledEvent) -> bool:
        api = self._context.api
        return bool(api.cuEventQuery(event.raw)[0] == api.CUresult.CUDA_SUCCESS)
