"""Batches in order: plans handed to workers ahead of the consumer, slots claimed for them, results lent out.

The consumer's own thread owns the ring and does all of the bookkeeping inside `next`; workers and finalisers only leave
messages. So there is no coordinator thread, and nothing here is locked but the counters of a batch.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import warnings
import weakref
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._fence import Fence
from interlock._core._lease import LeaseState
from interlock._core._spans import Level, Span, about, host_track, report, traced
from interlock.errors import SampleError
from interlock.feed._statistics import FeedStatistics
from interlock.feed._work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._pool import SlotMemory
    from interlock.feed._staging import Staging
    from interlock.feed._work import Reader

_GRUMBLE_S = 60.0
"""A source may be slow, so the feed waits for it without bound, but says so."""
_EXIT_JOIN_S = 5.0
"""How long the exit of the program waits for workers that are inside the source."""


@dataclass(slots=True)
class _Tally:
    """The counts of one pass, added to in place: a batch is handed over in microseconds."""

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    failed: int = 0
    substituted: int = 0
    retried: int = 0
    wait_s: float = 0.0
    wait_slot_s: float = 0.0
    fetch_s: float = 0.0
    copy_s: float = 0.0


@final
class Pipeline:
    """One pass over a reader's batches.

    Args:
        reader: Knows the batches.
        staging: Slots. Not used by anybody else until `idle`.
        workers: Threads; 0 makes each batch on the consumer's thread when it is asked for.
        depth: Batches that are being made or wait for the consumer.
        subject: Whose batches they are, for traces.
        judge: Called with each batch in order before it is handed over or left out, also with one that a bad sample
            ended; ends the pass by raising.
    """

    def __init__(
        self,
        reader: Reader,
        staging: Staging,
        *,
        workers: int,
        depth: int,
        subject: str = "feed",
        judge: Callable[[Work], None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._subject = subject
        self._judge = judge
        self._staging = staging
        self._workers = workers
        self._depth = depth
        self._crew = Crew(reader, staging, workers) if workers else None
        self._works: dict[int, Work] = {}
        self._planned = 0
        self._next_plan: Work | None = None
        self._exhausted = False
        self._stopped = False
        self._tally = _Tally()

    @property
    def crew(self) -> Crew | None:
        """Its workers; None where the consumer's thread makes the batches."""
        return self._crew

    @property
    def idle(self) -> bool:
        """Whether no worker has a slot any more, so that the staging may serve another pass."""
        self._take_messages()
        return self._staging.ring.statistics().filling == 0

    def take(self) -> tuple[Work, Any]:
        """Return the next batch, lent.

        Returns:
            The work, and the tree of arrays that the consumer gets.

        Raises:
            StopIteration: There are no more.
            Exception: What the source raised for this batch, or `BoundError`.

        Blocks: until the batch is there.
        """
        began = time.perf_counter()
        while True:
            self._take_messages()
            self._refill()
            lease = self._staging.ring.lend_nowait()
            if lease is None:
                self._wait(began)
                continue
            work = self._works.pop(lease.sequence)
            cause = self._judged(work, lease.fence.failure())
            if cause is not None or work.void:
                self._staging.ring.retire(lease)
                if cause is not None:
                    raise cause
                self._count(work, began)
                began = time.perf_counter()
                continue
            tree = self._hand_over_traced(work, began) if traced() else self._staging.hand_over(work)
            self._count(work, began)
            return work, tree

    def _hand_over_traced(self, work: Work, began: float) -> Any:
        start_ns = time.perf_counter_ns()
        with about(work.subject, work.number):
            tree = self._staging.hand_over(work)
        end_ns, track = time.perf_counter_ns(), host_track()
        report(Span(track, "wait", int(began * 1e9), start_ns, work.number, subject=work.subject))
        report(Span(track, "hand over", start_ns, end_ns, work.number, work.nbytes, work.subject))
        ring = self._staging.ring.statistics()
        report(Level(work.subject, "batches ready", end_ns, ring.ready))
        report(Level(work.subject, "batches lent", end_ns, ring.lent))
        return tree

    def stop(self) -> None:
        """End the pass: no more plans are taken up. Never blocks; workers finish the sample that they are at."""
        if self._stopped:
            return
        self._stopped = self._exhausted = True
        self._next_plan = None
        self._reader.stop()
        if self._crew is not None:
            self._crew.stop()
        for lease in list(self._staging.ring.leases(LeaseState.READY)):
            self._staging.ring.cancel(lease, Fence.EMPTY if lease.fence.failure() else lease.fence)
            del self._works[lease.sequence]
        if self._crew is None:  # claimed, but nobody works on them
            for work in self._works.values():
                self._staging.ring.cancel(work.lease)
            self._works.clear()

    def _judged(self, work: Work, cause: BaseException | None) -> BaseException | None:
        """Return why the pass ends at a batch. What failed in it counts unless something else ended it."""
        if cause is None or isinstance(cause, SampleError):
            tally = self._tally
            if work.errors:
                tally.failed += len(work.errors)
                tally.substituted += sum(one.substitute is not None for one in work.errors)
            tally.retried += work.retried
            try:
                self._judge(work)
            except Exception as error:  # noqa: BLE001 - raised by the caller, who retires the slot first
                cause = error if cause is None else cause
        return cause

    def _count(self, work: Work, began: float) -> None:
        tally = self._tally
        tally.batches += not work.void
        tally.samples += work.rows if not work.void else 0
        tally.nbytes += work.nbytes
        tally.wait_s += time.perf_counter() - began
        tally.fetch_s += work.fetch_s
        tally.copy_s += work.copy_s

    @property
    def statistics(self) -> FeedStatistics:
        """What this pass did so far; says nothing of slots."""
        return FeedStatistics(**asdict(self._tally))

    def _take_messages(self) -> None:
        while (message := self._staging.inbox.take_nowait()) is not None:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        if not isinstance(message, Work):
            self._staging.returned(message)
        elif self._stopped:
            self._staging.ring.cancel(message.lease, Fence.EMPTY if message.cause else message.ready)
            del self._works[message.lease.sequence]
        else:
            self._staging.ring.publish(message.lease, message.ready)

    def _refill(self) -> None:
        """Hand plans to the workers while fewer than `depth` batches are on their way and slots are free."""
        while not self._exhausted and len(self._works) < self._depth:
            if self._next_plan is None:
                self._next_plan = self._reader.plan(self._planned)
                if self._next_plan is None:
                    self._exhausted = True
                    return
                self._planned += 1
            lease = self._staging.claim(self._reader.slot_bytes)
            if lease is None:
                return
            work, self._next_plan = self._next_plan, None
            work.lease = lease
            work.subject = self._subject
            self._works[lease.sequence] = work
            if self._crew is not None:
                self._crew.give(work)

    def _wait(self, began: float) -> None:
        if not self._works:
            if self._exhausted:
                raise StopIteration
            slot_began = time.perf_counter()
            returned = self._staging.wait_free()
            if returned is not None:
                self._handle(returned)
            self._tally.wait_slot_s += time.perf_counter() - slot_began
            return
        oldest = self._works[min(self._works)]
        if self._crew is None:
            make(oldest, self._reader, self._staging)
            return
        message = self._staging.inbox.wait_take(_GRUMBLE_S)
        if message is not None:
            self._handle(message)
            return
        warnings.warn(
            f"the feed has waited {time.perf_counter() - began:.0f} s for batch {oldest.number} "
            f"(samples from {oldest.start} on): its source is slow, or hangs",
            RuntimeWarning,
            stacklevel=4,
        )


def make(work: Work, reader: Reader, staging: Staging, *, stopped: Callable[[], bool] = lambda: False) -> None:
    """Make pieces of a batch until none is left; whoever makes the last one finishes it and reports it."""
    memory = staging.memory_of(work.lease)
    made = 0
    failed: BaseException | None = None
    start_ns = time.perf_counter_ns() if traced() else 0
    while (unit := work.take()) < work.units:
        made += 1
        if failed is None and not stopped():
            try:
                reader.run(work, unit, memory)
            except BaseException as error:  # noqa: BLE001 - SystemExit too: it must reach the consumer, not end a worker
                failed = error
    if start_ns and made:
        size_bytes = work.layout.size_bytes * made // work.units if work.layout is not None else 0
        report(Span(host_track(), "fill", start_ns, time.perf_counter_ns(), work.number, size_bytes, work.subject))
    if made and work.settle(made, failed):
        _finish(work, reader, staging, memory)


def _finish(work: Work, reader: Reader, staging: Staging, memory: Callable[[int], SlotMemory]) -> None:
    cause = work.cause
    if cause is None:
        try:
            reader.finish(work, memory)
            if not work.void and work.layout is not None:
                work.ready = _carry(work, staging, memory(work.layout.size_bytes))
        except BaseException as error:  # noqa: BLE001 - as above
            cause = error
    if cause is not None:
        work.cause = cause
        work.ready = Fence.failed(cause)
    staging.inbox.post(work)


def _carry(work: Work, staging: Staging, memory: SlotMemory) -> Fence:
    if not traced():
        return staging.carry(work, memory)
    start_ns = time.perf_counter_ns()
    with about(work.subject, work.number):
        ready = staging.carry(work, memory)
    if ready.points:
        report(Span(host_track(), "queue copy", start_ns, time.perf_counter_ns(), work.number, subject=work.subject))
    return ready


@final
class Crew:
    """Worker threads of one pass. They hold no reference to the feed, so that dropping a feed ends them."""

    def __init__(self, reader: Reader, staging: Staging, workers: int) -> None:
        self._tasks: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._workers = workers
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(self._tasks, self._stop, reader, staging),
                name=f"interlock-feed-{index}",
                daemon=True,
            )
            for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        _stop_at_exit(self)

    def give(self, work: Work) -> None:
        """Let as many workers as can help make a batch."""
        for _ in range(min(self._workers, work.units)):
            self._tasks.put(work)

    def stop(self) -> None:
        """Ask the threads to end. Never blocks."""
        self._stop.set()
        for _ in self._threads:
            self._tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads until `deadline` on the monotonic clock. Blocks."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _serve(tasks: queue.SimpleQueue[Work | None], stop: threading.Event, reader: Reader, staging: Staging) -> None:
    while (work := tasks.get()) is not None:
        make(work, reader, staging, stopped=stop.is_set)


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()
_at_exit_lock = threading.Lock()
_at_exit_registered = False


def _stop_at_exit(crew: Crew) -> None:
    """End the workers before the interpreter takes their world away: a thread cut short inside C++ would abort."""
    global _at_exit_registered  # noqa: PLW0603 - registered with the first crew, not at import
    with _at_exit_lock:
        _crews.add(crew)
        if not _at_exit_registered:
            atexit.register(_end_crews)
            _at_exit_registered = True


def _end_crews() -> None:
    deadline = time.monotonic() + _EXIT_JOIN_S
    crews = list(_crews)
    for crew in crews:
        crew.stop()
    for crew in crews:
        crew.join(deadline)
