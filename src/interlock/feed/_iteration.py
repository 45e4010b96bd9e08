"""Passes over a source: the iterators that consumers hold, and what a feed remembers of them."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, final

from interlock._core._handover import Placement, StreamDevice, SupportsReceiver
from interlock.devices import open_device
from interlock.errors import UsageError
from interlock.feed._pipeline import Pipeline
from interlock.feed._processes import Processes
from interlock.feed._staging import Staging
from interlock.feed._statistics import FeedStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock._core._handover import Receiver
    from interlock._core._protocols import Device, Framework
    from interlock.feed._stages import Chain
    from interlock.feed._statistics import StageKind
    from interlock.feed._work import Reader, Work

_ANYHOW = Placement()
_serials = itertools.count(1)
_NONE: Iterator[Any] = iter(())


@final
class Passes:
    """All iterations of one feed: their statistics, and slots that one leaves to the next.

    Args:
        device: Where batches go.
        framework: Who reads them.
        budget_bytes: Most bytes in the slots of one pass.
        timeout_s: How long a pass waits for a slot.
        placement: How the consumer wants its arrays.
        verify: As in `Staging`.

    Attributes:
        device: As given.
        receiver: How batches get to arrays on the device; None where they are lent on the host.

    Raises:
        UsageError: The framework has no such arrays there.
    """

    def __init__(
        self,
        device: Device,
        framework: Framework,
        budget_bytes: int,
        timeout_s: float,
        placement: Placement = _ANYHOW,
        *,
        verify: bool = False,
    ) -> None:
        self.device = device
        self.receiver = _receiver_of(framework, device, placement)
        self.framework = framework
        self.budget_bytes = budget_bytes
        self._timeout_s = timeout_s
        self._verify = verify
        self._running: weakref.WeakSet[BatchIterator] = weakref.WeakSet()
        self._spare: list[Staging] = []
        self._lock = threading.RLock()  # statistics are asked for by other threads too, and by signals' handlers
        self._past = FeedStatistics()
        self._dropped: deque[FeedStatistics] = deque()
        self._subject = f"feed {next(_serials)}"
        self._processes: Processes | None = None
        self._pid = os.getpid()
        self._at_end: weakref.finalize[[], Passes] | None = None
        self._closing = False
        self.begun = 0

    def start(
        self,
        reader: Reader,
        *,
        workers: int,
        kind: StageKind = "threads",
        depth: int,
        present: Callable[[Work, Any], Any],
        judge: Callable[[Work], None] = lambda _: None,
        exhausted: Callable[[], None] = lambda: None,
        split: Callable[[Work, Any], Iterator[Any]] | None = None,
    ) -> BatchIterator:
        """Begin a pass.

        Args:
            reader: Knows the batches.
            workers: As in `Pipeline`.
            kind: As in `Pipeline`.
            depth: As in `Pipeline`.
            present: Turns a batch and its arrays into what the consumer gets.
            split: Does that where several batches are in a slot: it gives one after the other.
            judge: As in `Pipeline`.
            exhausted: Called when the consumer learns that there are no more batches.
        """
        self.begun += 1
        staging = self._spare.pop() if self._spare else self._new_staging()
        subject = self._subject if self.begun == 1 else f"{self._subject}, pass {self.begun}"
        pipeline = Pipeline(reader, staging, workers=workers, kind=kind, depth=depth, subject=subject, judge=judge)
        if self._processes is not None:
            self._processes.end_at_exit()
        iterator = BatchIterator(pipeline, staging, present, self._ended, exhausted, split)
        with self._lock:
            self._running.add(iterator)
        weakref.finalize(iterator, _note_dropped, pipeline, self._dropped)
        return iterator

    def _new_staging(self) -> Staging:
        bounds = self.budget_bytes, self._timeout_s
        shared = self._processes is not None
        return Staging(self.device, self.framework, *bounds, self.receiver, verify=self._verify, shared=shared)

    def processes(self, count: int, source: Any, chain: Chain | None) -> Processes:
        """Return the worker processes of all passes, which are begun with them or, after `close`, anew."""
        if self._pid != os.getpid():  # this process was forked: workers, and slots that are shared, are its parent's
            self._pid, self._processes = os.getpid(), None
            self._spare.clear()
        if self._processes is None:
            self._processes = Processes(count, source, chain)
            self._at_end = weakref.finalize(self, self._processes.end)
            self._at_end.atexit = False
        return self._processes

    def statistics(self) -> FeedStatistics:
        """Sum up all passes, ended and running."""
        with self._lock:
            while self._dropped:
                self._past = self._past.joined(self._dropped.popleft())
            total, running, spare = self._past, list(self._running), list(self._spare)
            for iterator in running:
                total = total.joined(iterator.pipeline.statistics)
        for staging in [*spare, *(iterator.staging for iterator in running)]:
            ring = staging.ring.statistics()
            total = total.plus(slots=ring.slots, slots_lent=ring.lent, slot_bytes=staging.pool.allocated_bytes)
            total = total.plus(host_syncs=staging.host_syncs)
        return total

    def close(self) -> None:
        """End all passes, and the worker processes.

        From inside the `next` of a pass, that ends when it returns, and so do the processes.

        Blocks: some seconds at most, until the processes are gone.
        """
        running = list(self._running)
        for iterator in running:
            iterator.close()
        self._closing = not all(iterator.over for iterator in running)
        if not self._closing:
            self._let_go()

    def _let_go(self) -> None:
        processes, self._processes = self._processes, None
        if self._at_end is not None:
            self._at_end.detach()  # else it would keep them, and what they have open, until the feed is gone
            self._at_end = None
        if processes is not None:
            processes.close()
        if self.receiver is not None:
            self.receiver.close()

    def _ended(self, iterator: BatchIterator, sound: bool) -> None:  # noqa: FBT001 - called through a Callable
        """Take in what a pass did, and its slots if no worker has one any more.

        Not after an interrupt, which may have come between two steps: a slot could be in nobody's hands.
        """
        reusable = sound and iterator.pipeline.idle
        with self._lock:
            iterator.pipeline.counted = True
            self._past = self._past.joined(iterator.pipeline.statistics)
            self._running.discard(iterator)
            if reusable:
                self._spare.append(iterator.staging)
            else:
                self._past = self._past.plus(host_syncs=iterator.staging.host_syncs)
        if self._closing:
            self._closing = False
            self._let_go()


def _note_dropped(pipeline: Pipeline, dropped: deque[FeedStatistics]) -> None:
    """Keep the counts of a pass whose iterator was dropped in the middle. Called from a finaliser: appends only."""
    if not pipeline.counted:
        dropped.append(pipeline.statistics)


def _receiver_of(framework: Framework, device: Device, placement: Placement) -> Receiver | None:
    receiver = None
    if isinstance(framework, SupportsReceiver):
        receiver = framework.receiver(device, device.stream("feed"), placement, open_device)
    if receiver is None and isinstance(device, StreamDevice):
        raise UsageError(
            f"{framework.name} has no arrays on {device.name}", hint="feed torch, jax or cupy, or leave the device out"
        )
    if receiver is None and placement.fixed:
        raise UsageError("fixed addresses need arrays on a device", why=f"these are on {device.name}")
    return receiver


@final
class BatchIterator:
    """One pass. Ends its workers when it is exhausted, fails, is closed or dropped."""

    def __init__(
        self,
        pipeline: Pipeline,
        staging: Staging,
        present: Callable[[Work, Any], Any],
        ended: Callable[[BatchIterator, bool], None],
        exhausted: Callable[[], None],
        split: Callable[[Work, Any], Iterator[Any]] | None,
    ) -> None:
        self.pipeline = pipeline
        self.staging = staging
        self.over = False
        self._present = present
        self._split = split
        self._rest = _NONE
        self._ended = ended
        self._exhausted = exhausted
        self._lock = threading.RLock()  # a signal's handler may close the pass whatever its thread is at
        self._inside: int | None = None
        self._closing = False
        weakref.finalize(self, pipeline.stop)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            SampleError: The source could not give a sample, or more of them than are tolerated.
            SinkError: A bad sample cannot be written to the ledger.
            BoundError: Every slot is in use, and none came back in time.

        Blocks: until the batch is there.
        """
        with self._lock:
            self._inside = threading.get_ident()
            if self.over:  # asked now: until here, `close` by a signal's handler ends the pass at once
                self._inside = None
                raise StopIteration
            try:
                batch = self._take()
            except BaseException as error:
                if isinstance(error, StopIteration):
                    self._exhausted()
                self._end(sound=isinstance(error, Exception))
                raise
            finally:
                self._inside = None
            if self._closing:
                self._end()
            return batch

    def _take(self) -> Any:
        for batch in self._rest:  # when there is none it has let go of its slot
            return batch
        work, arrays = self.pipeline.take()
        if self._split is None:
            return self._present(work, arrays)
        self._rest = self._split(work, arrays)
        return next(self._rest)

    def close(self) -> None:
        """End the pass early. Batches that were handed over stay valid.

        From inside `next`, as by a source on the consumer's thread or by a signal's handler: the pass ends when that
        returns.

        Blocks: while another thread is inside `next`.
        """
        if self._inside == threading.get_ident():
            self._closing = True
            return
        with self._lock:
            if not self.over:
                self._end()

    def _end(self, *, sound: bool = True) -> None:
        if self.over:
            return
        self.over = True
        self._rest = _NONE
        self.pipeline.stop()
        self._ended(self, sound)
