"""A device made of Python: asynchronous as a GPU is, and as unkind as a schedule wants, on a machine without one.

Streams are queues; what runs when is decided by a `Schedule`. Memory that nothing has written yet holds poison (0xFF in
each byte: NaN as a float, -1 as an integer), and so does the host side of a copy to the host that has not landed,
unless something queued still needs the old bytes. A program that orders its accesses sees no difference between
schedules; one that does not sees poison or stale bytes.

Not shown: real overlap, copy engines, faults of drivers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from interlock._core._events import Access, Record, Wait, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._marks import Mark, MarkedSpans
from interlock._core._memory import HostMemory
from interlock._core._queue import Operation, OperationQueue, is_past
from interlock._core._sites import here
from interlock._core._spans import copy_name, expect, timed
from interlock.devices._schedules import Lazy, Schedule, parse_schedule
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from interlock._core._fence import Timeline
    from interlock._core._protocols import Memory

POISON = 0xFF
_QUERIES_BEFORE_PROGRESS = 16
"""A program may spin on a query, so a schedule may say "not yet" only so often in a row."""


@final
class SimulatedDevice:
    """Streams, events and asynchronous copies whose order a schedule decides.

    Args:
        schedule: Text as in `parse_schedule`, or a policy of your own.
        index: Number in the name `simulated:INDEX`.
        name: A name of its own instead, as `cuda:0`.

    Raises:
        UsageError: There is no such schedule.
    """

    def __init__(self, schedule: str | Schedule = "lazy", *, index: int = 0, name: str | None = None) -> None:
        self.schedule: Schedule = parse_schedule(schedule) if isinstance(schedule, str) else schedule
        self._lazy = isinstance(self.schedule, Lazy)
        self._name = name if name is not None else f"simulated:{index}"
        self._streams: dict[str, OperationQueue] = {}
        self._queries: dict[str, int] = {}
        self._lock = threading.RLock()
        self._marked = MarkedSpans()

    def __repr__(self) -> str:
        return f"SimulatedDevice({str(self.schedule)!r})"

    @property
    def name(self) -> str:
        """`simulated:INDEX`, or as given."""
        return self._name

    @property
    def host_visible(self) -> bool:
        """False: what the device works on must be copied to it."""
        return False

    def allocate(self, size_bytes: int) -> HostMemory:
        """As in `Device`: poisoned."""
        return self._poisoned(size_bytes, on_device=True)

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory:
        """As in `Device`: poisoned."""
        return self._poisoned(size_bytes, on_device=False, shared=shared)

    def _poisoned(self, size_bytes: int, *, on_device: bool, shared: bool = False) -> HostMemory:
        memory = HostMemory.allocate(size_bytes, self._name, on_device=on_device, shared=shared)
        _poison(memory)
        return memory

    def stream(self, name: str) -> OperationQueue:
        """As in `Device`. In schedules the stream has this bare name."""
        with self._lock:
            if name not in self._streams:
                self._streams[name] = OperationQueue(f"{self._name}/{name}", self._progress)
            return self._streams[name]

    def copy(self, target: Memory, source: Memory, stream: Timeline) -> None:
        """As in `Device`. A host target holds poison until the copy lands, if nothing queued needs its old bytes."""
        if target.size_bytes != source.size_bytes:
            raise UsageError(f"cannot copy {source.size_bytes} bytes to {target.size_bytes}")
        self._own(stream)
        lands_on_host = not _is_on_device(target)
        with self._lock:
            if lands_on_host and not target.region.overlaps(source.region) and not self._is_touched(target):
                _poison(target)

        def run() -> None:
            target.view()[:] = source.view()

        name = copy_name(from_device=_is_on_device(source), to_device=_is_on_device(target))
        run = timed(run, stream.name, name, target.size_bytes)
        self.launch(stream, run, reads=[source], writes=[target], name="copy")

    def launch(
        self,
        stream: Timeline,
        work: Callable[[], None],
        *,
        reads: Iterable[Memory] = (),
        writes: Iterable[Memory] = (),
        name: str = "kernel",
    ) -> None:
        """Queue `work`, which stands for a kernel. Does not wait.

        Args:
            stream: One of this device's streams.
            work: Called when the schedule lets it run, on whatever thread that happens. If it raises, the stream fails.
            reads: Memory that it reads.
            writes: Memory that it writes.
            name: Shown in reports.

        Raises:
            UsageError: The stream is another device's.
        """
        queue = self._own(stream)
        reads, writes = tuple(reads), tuple(writes)
        if observed():
            issuer, site = host_timeline(), here()
            for memory in reads:
                emit(Access(queue.name, memory.region, "read", name, issuer, site))
            for memory in writes:
                emit(Access(queue.name, memory.region, "write", name, issuer, site))
        touches = tuple(memory.region for memory in (*reads, *writes))
        with self._lock:
            queue.put(Operation(name, work, touches=touches))
            self._offer()

    def enqueue(self, queue: OperationQueue, work: Callable[[], None] | None, name: str, *, most: int) -> int:
        """Queue `work` on a stream of this device, for callers that emit the events themselves.

        Args:
            queue: One of this device's streams.
            work: As in `launch`; None for a mark that does nothing.
            name: Shown in messages.
            most: Operations that may be pending on the stream; beyond it the oldest run, as a full launch queue makes
                the host wait without telling it anything.

        Returns:
            The operation's tick.
        """
        with self._lock:
            tick = queue.put(Operation(name, work))
            if not self._lazy:
                self._offer()
            if queue.queued - queue.done > most:
                self._advance(queue, queue.queued - most)
            return tick

    def streams(self) -> tuple[OperationQueue, ...]:
        """Return the streams, in the order in which they were made."""
        with self._lock:
            return tuple(self._streams.values())

    def wait(self, stream: Timeline, fence: Fence) -> None:
        """As in `Device`."""
        queue = self._own(stream)
        if observed():
            emit(Wait(queue.name, fence.plain(), here()))
        with self._lock:
            queue.put(Operation("wait", None, after=fence))
            self._offer()

    def record(self, stream: Timeline) -> Fence:
        """As in `Device`."""
        queue = self._own(stream)
        with self._lock:
            tick = queue.queued
        if observed():
            emit(Record(queue.name, tick, here()))
        return Fence([(queue, tick)])

    def mark(self, stream: Timeline) -> Mark:
        """As in `Marks`."""
        queue, mark = self._own(stream), Mark(stream.name)
        with self._lock:
            queue.put(Operation("mark", mark.take))
            mark.fence = Fence([(queue, queue.queued)])
            self._offer()
        expect(self)
        return mark

    def report_between(self, start: Mark, end: Mark, name: str, *, size_bytes: int = 0, number: int = -1) -> None:
        """As in `Marks`."""
        self._marked.add(start, end, name, size_bytes, number)

    def report_due(self) -> None:
        """As in `Marks`."""
        self._marked.report_due()

    def unreported(self) -> Fence:
        """As in `Marks`."""
        return self._marked.unreported()

    def _own(self, stream: Timeline) -> OperationQueue:
        queue = self._streams.get(stream.name.removeprefix(f"{self._name}/"))
        if queue is None or queue is not stream:
            raise UsageError(f"{stream!r} is not a stream of {self._name}", hint="get one from device.stream(name)")
        return queue

    def _is_touched(self, memory: Memory) -> bool:
        return any(
            memory.region.overlaps(region)
            for queue in self._streams.values()
            for operation in queue.pending()
            for region in operation.touches
        )

    def _runnable(self) -> tuple[str, ...]:
        return tuple(name for name, queue in self._streams.items() if queue.can_run())

    def _offer(self) -> None:
        """Let the schedule run what it wants to, as long as it wants to."""
        while runnable := self._runnable():
            name = self.schedule.choose(runnable, frozenset())
            if name is None:
                return
            self._streams[name].run_one()

    def _progress(self, queue: OperationQueue, tick: int, waiting: bool) -> None:  # noqa: FBT001
        with self._lock:
            count = self._queries[queue.name] = 0 if waiting else self._queries.get(queue.name, 0) + 1
            if 0 < count < _QUERIES_BEFORE_PROGRESS:
                return self._offer()
            self._queries[queue.name] = 0
        foreign = self._advance(queue, tick)
        # What it hangs on now is not ours to run: ask its owner, without our lock, and go on if that helped.
        while any(timeline.reached(point, waiting=waiting) for timeline, point in foreign):
            foreign = self._advance(queue, tick)
        return None

    def _advance(self, queue: OperationQueue, tick: int) -> list[tuple[Timeline, int]]:
        """Run what `tick` of `queue` needs; return the points of others that it hangs on, if it does."""
        with self._lock:
            while not queue.is_past(tick):
                if self._lazy and queue.can_run():  # what the general case comes to, without its cost
                    queue.run_one()
                    continue
                runnable = self._runnable()
                names, foreign = self._needed(queue)
                needed = names & frozenset(runnable)
                if not needed:
                    return foreign
                self._streams[self.schedule.choose(runnable, needed) or min(needed)].run_one()
            return []

    def _needed(self, queue: OperationQueue) -> tuple[frozenset[str], list[tuple[Timeline, int]]]:
        """Return the streams that must move so that `queue` can, itself included, and the points of other timelines."""
        names = {id(stream): name for name, stream in self._streams.items()}
        found: set[str] = set()
        foreign: list[tuple[Timeline, int]] = []
        frontier: list[OperationQueue] = [queue]
        while frontier:
            current = frontier.pop()
            if names[id(current)] in found or current.head is None:
                continue
            found.add(names[id(current)])
            for timeline, tick in current.head.after.points:
                if is_past(timeline, tick):
                    continue
                if isinstance(timeline, OperationQueue) and id(timeline) in names:
                    frontier.append(timeline)
                else:
                    foreign.append((timeline, tick))
        return frozenset(found), foreign


def _is_on_device(memory: Memory) -> bool:
    return not isinstance(memory, HostMemory) or memory.on_device


def _poison(memory: Memory) -> None:
    memory.view()[:] = bytes([POISON]) * memory.size_bytes
