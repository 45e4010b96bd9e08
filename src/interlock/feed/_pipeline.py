"""Batches in order: plans handed to workers ahead of the consumer, slots claimed for them, results lent out.

The consumer's own thread owns the ring and does all of the bookkeeping inside `next`; workers and finalisers only leave
messages. So there is no coordinator thread, and nothing here is locked but the counters of a batch.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._fence import Fence
from interlock._core._lease import LeaseState
from interlock._core._processors import Turns
from interlock._core._spans import Level, Span, about, host_track, report, traced
from interlock.errors import SampleError
from interlock.feed._crew import Crew, make
from interlock.feed._statistics import FeedStatistics
from interlock.feed._times import Times
from interlock.feed._work import StagedReader, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.feed._staging import Staging
    from interlock.feed._statistics import StageKind
    from interlock.feed._work import Reader

_GRUMBLE_S = 60.0
"""A source may be slow, so the feed waits for it without bound, but says so."""
_TURNS_FIRST_S = 0.2
_TURNS_EVERY_S = 0.5
"""How often threads are asked whether they get a processor when they want one: some ten microseconds for each."""
_PROCESS_EVERY_S = 0.05
"""How often the processor time of the process is asked for: a call costs as much as a twentieth of a hand-over."""


@dataclass(slots=True)
class _Tally:
    """The counts of one pass, added to in place: a batch is handed over in microseconds."""

    passes: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    failed: int = 0
    substituted: int = 0
    retried: int = 0
    wait_s: float = 0.0
    wait_slot_s: float = 0.0
    wait_link_s: float = 0.0
    start_s: float = 0.0
    elapsed_s: float = 0.0
    slotless: int = 0
    wakes: int = 0
    wake_s: float = 0.0
    process_s: float = 0.0
    ran_s: float = 0.0
    delayed_s: float = 0.0
    fetch_s: float = 0.0
    copy_s: float = 0.0


@final
class Pipeline:
    """One pass over a reader's batches.

    Args:
        reader: Knows the batches.
        staging: Slots. Not used by anybody else until `idle`.
        workers: Threads; 0 makes each batch on the consumer's thread when it is asked for.
        kind: Who does the work: those threads, or processes that each of them drives one of.
        depth: Batches that are being made or wait for the consumer.
        subject: Whose batches they are, for traces.
        judge: Called with each batch in order before it is handed over or left out, also with one that a bad sample
            ended; ends the pass by raising.

    Attributes:
        counted: Whether somebody took its statistics for the last time.
    """

    def __init__(
        self,
        reader: Reader,
        staging: Staging,
        *,
        workers: int,
        kind: StageKind = "threads",
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
        self._crew = Crew(reader, staging, workers, staged=kind == "threads") if workers else None
        self._works: dict[int, Work] = {}
        self._planned = 0
        self._next_plan: Work | None = None
        self._exhausted = False
        self._stopped = False
        self.counted = False
        self._tally = _Tally()
        steps = reader.steps if isinstance(reader, StagedReader) else ()
        self._times = Times(kind if workers else "inline", max(1, workers), steps)
        self._began_s = 0.0
        self._process_began_s = 0.0
        self._process_read_s = 0.0
        self._turns: Turns | None = None
        self._turns_read_s = _TURNS_FIRST_S

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
        if not self._began_s:
            self._began_s, self._process_began_s = began, time.process_time()
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
        tally, now = self._tally, time.perf_counter()
        tally.wait_s += now - began
        if not tally.batches:
            tally.start_s, tally.passes = tally.wait_s, int(not work.void)
        tally.batches += 0 if work.void else work.batches
        tally.samples += work.rows if not work.void else 0
        tally.nbytes += work.nbytes
        tally.fetch_s += work.fetch_s
        tally.copy_s += work.copy_s
        self._times.count(work)
        self._elapsed(now)

    def _elapsed(self, now: float) -> None:
        self._tally.elapsed_s = now - self._began_s
        if now >= self._process_read_s:
            self._process_read_s = now + _PROCESS_EVERY_S
            self._tally.process_s = time.process_time() - self._process_began_s
            if self._tally.elapsed_s >= self._turns_read_s:
                self._take_turns()

    def _take_turns(self) -> None:
        tally, self._turns_read_s = self._tally, self._tally.elapsed_s + _TURNS_EVERY_S
        if self._turns is None:
            self._turns = Turns()
        self._turns.update()
        tally.ran_s, tally.delayed_s = self._turns.ran_s, self._turns.delayed_s

    @property
    def statistics(self) -> FeedStatistics:
        """What this pass did so far; says nothing of slots."""
        tally = self._tally
        return FeedStatistics(**asdict(tally), stages=self._times.stages(tally.samples, tally.elapsed_s))

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
                self._tally.slotless += 1
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
                self._process_read_s = 0.0
                self._elapsed(began)
                raise StopIteration
            slot_began = time.perf_counter()
            returned = self._staging.wait_free()
            if returned is not None:
                self._handle(returned)
            waited_s = time.perf_counter() - slot_began
            self._tally.wait_slot_s += waited_s
            if returned is None:
                self._tally.wait_link_s += waited_s
            return
        oldest = self._works[min(self._works)]
        if self._crew is None:
            make(oldest, self._reader, self._staging)
            return
        message = self._staging.inbox.wait_take(_GRUMBLE_S)
        if message is not None:
            if isinstance(message, Work) and message.made_s:
                self._tally.wakes += 1
                self._tally.wake_s += time.perf_counter() - message.made_s
            self._handle(message)
            return
        warnings.warn(
            f"the feed has waited {time.perf_counter() - began:.0f} s for batch {oldest.number} "
            f"(samples from {oldest.start} on): its source is slow, or hangs",
            RuntimeWarning,
            stacklevel=4,
        )
