"""What the simulator knows without any framework: streams of threads, queues, waits, frees and their events."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

from interlock._core._events import (
    Access,
    AllocationId,
    Free,
    HostWait,
    Region,
    Wait,
    emit,
    host_timeline,
    new_allocation_id,
    observed,
)
from interlock._core._fence import Fence
from interlock._core._sites import here
from interlock._waiting import wait
from interlock.check._simulate._hosts import HostTable
from interlock.check._simulate._reports import Listener, Nobody
from interlock.devices import SimulatedDevice

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from interlock._core._events import Site
    from interlock._core._queue import OperationQueue
    from interlock.devices import Schedule

MOST_PENDING = 1024
"""Operations that a stream holds before the host waits for the oldest: the length of CUDA's launch queue."""
_LONGEST_WAIT_S = 120.0
DEVICE = "cuda:0"
DEFAULT = "default"


@final
class Block:
    """Memory of the simulated device: one storage.

    Attributes:
        allocation: Its name in events.
        home: The stream that it was allocated on.
        root: A tensor over the adversary's bytes; None until something wrote or looked at them.
        shared: Streams other than `home` that used it.
        kept_for: Streams that it must outlive by `record_stream`.
        emptied: Whether its storage was resized to nothing.
        gradient: Whether a backward pass made it, which then keeps it for the streams that it takes it to.
        pool: Whether it belongs to a graph's memory, which is never given back before the graph.
    """

    __slots__ = ("allocation", "emptied", "gradient", "home", "kept_for", "nbytes", "pool", "root", "shared")

    def __init__(self, home: OperationQueue, nbytes: int) -> None:
        self.allocation: AllocationId = new_allocation_id()
        self.home = home
        self.nbytes = nbytes
        self.root: Any = None
        self.shared: set[OperationQueue] | None = None
        self.kept_for: set[OperationQueue] | None = None
        self.pool = False
        self.emptied = False
        self.gradient = False


@final
class Handle:
    """Lives as long as any tensor over its block does; its end is the block's free."""

    __slots__ = ("__weakref__", "block", "engine")

    def __init__(self, block: Block, engine: Engine) -> None:
        self.block = block
        self.engine = engine

    def __del__(self) -> None:
        # May run anywhere, at any time: append and do nothing else. The place is needed only where a race can be.
        block = self.block
        self.engine.freed.append((block, here() if block.shared and self.engine.live else ()))


class _Current(threading.local):
    """What each host thread has chosen."""

    stream: OperationQueue | None = None
    quiet: bool = False


@final
class Engine:
    """One simulation.

    Args:
        schedule: Decides what runs when.
        session: Told of what is seen.
    """

    def __init__(self, schedule: Schedule | str, session: Listener | None) -> None:
        self.device = SimulatedDevice(schedule, name=DEVICE)
        self.session: Listener = session if session is not None else Nobody()
        self.hosts = HostTable()
        self.lock = threading.RLock()
        self.live = True
        self.freed: deque[tuple[Block, Site]] = deque()
        self.capture: Any = None
        self.default = self.device.stream(DEFAULT)
        self.guard: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.poison: Callable[[Any], None] = lambda _: None
        self.stream_changed: Callable[[Any, Any], None] = lambda _before, _after: None
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.current = _Current()
        self._numbers: dict[str, itertools.count[int]] = {}

    # ------------------------------------------------------------ streams

    @property
    def stream(self) -> OperationQueue:
        """The calling thread's current stream."""
        return self.current.stream or self.default

    @stream.setter
    def stream(self, queue: OperationQueue) -> None:
        self.stream_changed(self.stream, queue)
        self.current.stream = queue

    def switch(self, queue: OperationQueue) -> None:
        """Change the calling thread's stream without telling autograd, which asks for it."""
        self.current.stream = queue

    def new_stream(self, kind: str = "stream") -> OperationQueue:
        """Make a stream; its bare name is `KIND-NUMBER`."""
        with self.lock:
            number = next(self._numbers.setdefault(kind, itertools.count(1)))
        return self.device.stream(f"{kind}-{number}")

    # ------------------------------------------------------------ queueing

    def enqueue(self, queue: OperationQueue, run: Callable[[], None] | None, name: str) -> int:
        """Queue an operation; its events were emitted already. Returns its tick."""
        if self.freed:
            self.sweep()
        self.session.step()
        return self._put(queue, run, name)

    def _put(self, queue: OperationQueue, run: Callable[[], None] | None, name: str) -> int:
        if run is None:
            return self.device.enqueue(queue, None, name, most=MOST_PENDING)

        def work() -> None:  # on whatever thread waits for it, in whatever mode that is
            if self.current.quiet:  # a guard is on already
                run()
            else:
                with self.guard():
                    run()

        return self.device.enqueue(queue, work, name, most=MOST_PENDING)

    def record(self, queue: OperationQueue) -> Fence:
        """Return the fence of everything queued on a stream so far."""
        if self.freed:
            self.sweep()
        return self.device.record(queue)

    def order(self, queue: OperationQueue, fence: Fence) -> None:
        """Let what is queued on a stream from now on come after a fence."""
        if self.freed:
            self.sweep()
        with self.guard():
            self.device.wait(queue, fence)

    def order_streams(self, after: OperationQueue, before: OperationQueue) -> None:
        """Let what is queued on `after` from now on come after all that is queued on `before`."""
        if after is not before:
            self.order(after, self.record(before))

    def wait_host(self, fence: Fence, what: str) -> None:
        """Make the calling thread wait for a fence. Blocks: until the schedule has run what it needs."""
        self._refuse_capture(fence)
        with self.guard():
            wait(fence, timeout_s=_LONGEST_WAIT_S, what=what)
        self.saw(fence)

    def _refuse_capture(self, fence: Fence) -> None:
        if self.capture is not None and any(self.capture.covers(queue) for queue, _ in fence.points):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def poll(self, fence: Fence) -> bool:
        """Ask whether a fence is reached, as a query of an event does; True is a proof for the host."""
        self._refuse_capture(fence)
        with self.guard():
            done = fence.poll()
        if done:
            self.saw(fence)
        return done

    def saw(self, fence: Fence) -> None:
        """Say that the calling thread has seen a fence reached."""
        if observed():
            emit(HostWait(host_timeline(), fence.plain(), here()))

    def finish(self, queue: OperationQueue, what: str) -> None:
        """Wait for everything on a stream."""
        if self.capture is not None and self.capture.covers(queue):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.wait_host(self.record(queue), what)

    def finish_all(self, what: str) -> None:
        """Wait for everything on the device."""
        self.wait_host(Fence.EMPTY.join(*(self.record(queue) for queue in self.device.streams())), what)

    def drain(self) -> None:
        """Run everything that is pending, without telling anybody: the end of the program."""
        with self.guard():
            for queue in self.device.streams():
                fence = Fence([(queue, queue.queued)])
                fence.poll(waiting=True)

    # ------------------------------------------------------------ events

    def accesses(
        self, queue: OperationQueue, name: str, reads: list[Region], writes: list[Region], *, exact: bool = True
    ) -> None:
        """Say which bytes an operation on a stream will touch. The caller has asked `observed`."""
        issuer, site, timeline = host_timeline(), here(2), queue.name
        for region in reads:
            emit(Access(timeline, region, "read", name, issuer, site, exact))
        for region in writes:
            emit(Access(timeline, region, "write", name, issuer, site, exact))

    def host_access(self, region: Region, mode: Any, name: str, *, exact: bool = True) -> None:
        """Say that the calling thread touches host bytes now."""
        if observed():
            emit(Access(host_timeline(), region, mode, name, "", here(2), exact))

    @property
    def is_quiet(self) -> bool:
        """Whether host accesses of the calling thread are the simulator's own."""
        return self.current.quiet

    # ------------------------------------------------------------ memory

    def allocate(self, home: OperationQueue, nbytes: int) -> Block:
        """Make a block; its bytes come later."""
        block = Block(home, nbytes)
        self.allocated_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        if self.capture is not None and self.capture.covers(home):
            block.pool = True
            self.capture.keep(block)
        return block

    def sweep(self) -> None:
        """Give back what finalisers left: the block is poison from here on, in the order of its home stream."""
        while self.freed:
            try:
                block, site = self.freed.popleft()
            except IndexError:  # another thread took it
                return
            self.allocated_bytes -= block.nbytes
            if not block.pool:
                self._free(block, site)

    def give_back(self, block: Block, site: Site) -> None:
        """Free a block now."""
        if self.freed:
            self.sweep()
        self._free(block, site)

    def _free(self, block: Block, site: Site) -> None:
        timeline, after = block.home, None
        if block.kept_for:
            # Behind the streams that it was recorded for, on a timeline that nothing else comes after.
            fences = [self.device.record(queue) for queue in (block.home, *block.kept_for)]
            after = Fence.EMPTY.join(*fences)
            if observed():
                kept = sorted(queue.name.rpartition("/")[2] for queue in block.kept_for)
                name = "-".join((f"{DEVICE}/free", block.home.name.rpartition("/")[2], *kept))
                emit(Wait(name, after.plain(), site))
                emit(Free(name, block.allocation, host_timeline(), site))
        elif observed():
            emit(Free(timeline.name, block.allocation, host_timeline(), site))
        if not block.shared:
            return  # all its uses are on one stream: nobody can see what becomes of it

        def run() -> None:
            if block.root is not None:
                self.poison(block.root)

        with self.guard():
            if after is not None:
                timeline = self.device.stream("allocator")
                self.device.wait(timeline, after)
        self._put(timeline, run, "free")
