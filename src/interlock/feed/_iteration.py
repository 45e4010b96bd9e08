"""Passes over a source: the iterators that consumers hold, and what a feed remembers of them."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, final

from interlock._core._handover import Placement, StreamDevice, SupportsReceiver
from interlock.devices import open_device
from interlock.errors import UsageError
from interlock.feed._pipeline import Pipeline
from interlock.feed._staging import Staging
from interlock.feed._statistics import FeedStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock._core._handover import Receiver
    from interlock._core._protocols import Device, Framework
    from interlock.feed._work import Reader, Work

_ANYHOW = Placement()
_serials = itertools.count(1)


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
        self._framework = framework
        self._budget_bytes = budget_bytes
        self._timeout_s = timeout_s
        self._verify = verify
        self._running: weakref.WeakSet[BatchIterator] = weakref.WeakSet()
        self._spare: list[Staging] = []
        self._past = FeedStatistics()
        self._subject = f"feed {next(_serials)}"
        self.begun = 0

    def start(
        self,
        reader: Reader,
        *,
        workers: int,
        depth: int,
        present: Callable[[Work, Any], Any],
        judge: Callable[[Work], None] = lambda _: None,
        exhausted: Callable[[], None] = lambda: None,
    ) -> BatchIterator:
        """Begin a pass.

        Args:
            reader: Knows the batches.
            workers: As in `Pipeline`.
            depth: As in `Pipeline`.
            present: Turns a batch and its arrays into what the consumer gets.
            judge: As in `Pipeline`.
            exhausted: Called when the consumer learns that there are no more batches.
        """
        self.begun += 1
        staging = self._spare.pop() if self._spare else self._new_staging()
        subject = self._subject if self.begun == 1 else f"{self._subject}, pass {self.begun}"
        pipeline = Pipeline(reader, staging, workers=workers, depth=depth, subject=subject, judge=judge)
        iterator = BatchIterator(pipeline, staging, present, self._ended, exhausted)
        self._running.add(iterator)
        return iterator

    def _new_staging(self) -> Staging:
        bounds = self._budget_bytes, self._timeout_s
        return Staging(self.device, self._framework, *bounds, self.receiver, verify=self._verify)

    def statistics(self) -> FeedStatistics:
        """Sum up all passes, ended and running."""
        total = self._past
        running = [iterator for iterator in self._running if not iterator.over]
        for iterator in running:
            total = total.plus(**iterator.pipeline.statistics.as_dict())
        for staging in [*self._spare, *(iterator.staging for iterator in running)]:
            ring = staging.ring.statistics()
            total = total.plus(slots=ring.slots, slots_lent=ring.lent, slot_bytes=staging.pool.allocated_bytes)
            total = total.plus(host_syncs=staging.host_syncs)
        return total

    def close(self) -> None:
        """End all passes."""
        for iterator in list(self._running):
            iterator.close()
        if self.receiver is not None:
            self.receiver.close()

    def _ended(self, iterator: BatchIterator, sound: bool) -> None:  # noqa: FBT001 - called through a Callable
        """Take in what a pass did, and its slots if no worker has one any more.

        Not after an interrupt, which may have come between two steps: a slot could be in nobody's hands.
        """
        self._past = self._past.plus(**iterator.pipeline.statistics.as_dict())
        self._running.discard(iterator)
        if sound and iterator.pipeline.idle:
            self._spare.append(iterator.staging)
        else:
            self._past = self._past.plus(host_syncs=iterator.staging.host_syncs)


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
    ) -> None:
        self.pipeline = pipeline
        self.staging = staging
        self.over = False
        self._present = present
        self._ended = ended
        self._exhausted = exhausted
        self._lock = threading.Lock()
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
            if self.over:
                raise StopIteration
            try:
                work, arrays = self.pipeline.take()
                return self._present(work, arrays)
            except BaseException as error:
                if isinstance(error, StopIteration):
                    self._exhausted()
                self._end(sound=isinstance(error, Exception))
                raise

    def close(self) -> None:
        """End the pass early. Batches that were handed over stay valid."""
        with self._lock:
            if not self.over:
                self._end()

    def _end(self, *, sound: bool = True) -> None:
        self.over = True
        self.pipeline.stop()
        self._ended(self, sound)
