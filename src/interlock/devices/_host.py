"""The host as a device: copies happen at once, on the calling thread, unless a stream has to wait for something."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from interlock._core._events import Access, Record, Wait, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._marks import Mark, MarkedSpans
from interlock._core._memory import HostMemory
from interlock._core._queue import Operation, OperationQueue
from interlock._core._sites import here
from interlock._core._spans import expect, timed
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock._core._fence import Timeline
    from interlock._core._protocols import Memory


@final
class HostDevice:
    """Ordinary memory of this process.

    Its streams run each operation when it is queued; behind a fence that is not reached yet they queue it, and go on
    when somebody asks. So code written for asynchronous devices runs here unchanged, and without their cost.
    """

    def __init__(self) -> None:
        self._streams: dict[str, OperationQueue] = {}
        self._lock = threading.RLock()
        self._marked = MarkedSpans()

    def __repr__(self) -> str:
        return "HostDevice()"

    @property
    def name(self) -> str:
        """`host`."""
        return "host"

    @property
    def host_visible(self) -> bool:
        """True."""
        return True

    def allocate(self, size_bytes: int) -> HostMemory:
        """As in `Device`: page-aligned."""
        return HostMemory.allocate(size_bytes, self.name, on_device=False)

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory:
        """As in `Device`; without `shared` the same as `allocate`."""
        return HostMemory.allocate(size_bytes, self.name, on_device=False, shared=shared)

    def stream(self, name: str) -> OperationQueue:
        """As in `Device`."""
        with self._lock:
            if name not in self._streams:
                self._streams[name] = OperationQueue(f"host/{name}", self._progress)
            return self._streams[name]

    def copy(self, target: Memory, source: Memory, stream: Timeline) -> None:
        """As in `Device`. Blocks: while it copies, if the stream waits for nothing."""
        if target.size_bytes != source.size_bytes:
            raise UsageError(f"cannot copy {source.size_bytes} bytes to {target.size_bytes}")
        queue = self._own(stream)
        if observed():
            issuer, site = host_timeline(), here()
            emit(Access(queue.name, source.region, "read", "copy", issuer, site))
            emit(Access(queue.name, target.region, "write", "copy", issuer, site))

        def run() -> None:
            target.view()[:] = source.view()

        run = timed(run, queue.name, "copy", target.size_bytes)
        self._put(queue, Operation("copy", run, touches=(target.region, source.region)))

    def wait(self, stream: Timeline, fence: Fence) -> None:
        """As in `Device`."""
        queue = self._own(stream)
        if observed():
            emit(Wait(queue.name, fence.plain(), here()))
        self._put(queue, Operation("wait", None, after=fence))

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
            self._put(queue, Operation("mark", mark.take))
            mark.fence = Fence([(queue, queue.queued)])
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
        queue = self._streams.get(stream.name.removeprefix("host/"))
        if queue is None or queue is not stream:
            raise UsageError(f"{stream!r} is not a stream of the host device", hint="get one from device.stream(name)")
        return queue

    def _put(self, queue: OperationQueue, operation: Operation) -> None:
        with self._lock:
            queue.put(operation)
            while queue.can_run():
                queue.run_one()

    def _progress(self, queue: OperationQueue, tick: int, waiting: bool) -> None:  # noqa: ARG002, FBT001
        head = queue.head
        if head is not None:
            head.after.poll(waiting=waiting)  # what it waits for may be another stream's or device's to run
        with self._lock:
            while queue.can_run():
                queue.run_one()
