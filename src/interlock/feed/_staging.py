"""The slots of a feed: claimed for workers, carried to the device, lent to the consumer, taken back when let go."""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock import _waiting
from interlock._core import _events
from interlock._core._fence import Fence
from interlock._core._handover import Part
from interlock._core._lease import LeaseState
from interlock._core._loan import Loan
from interlock._core._pool import SlotPool
from interlock._core._ring import Ring
from interlock._core._sites import here
from interlock.errors import BoundError, InternalError
from interlock.feed._layout import shaped
from interlock.feed._verify import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._handover import Receiver
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Framework
    from interlock.feed._layout import Layout
    from interlock.feed._work import Work

_PATIENCE_S = 0.2
"""A device that is behind gives a slot back sooner than that."""
_GRUMBLE_S = 5.0
"""After so many seconds without a free slot the feed says what holds them."""


@final
class _Token:
    """What a consumer's arrays on a device keep alive while they read a slot."""

    __slots__ = ("__weakref__",)


@final
class Staging:
    """A ring with its memory, its device and the framework that it lends to. Belongs to the thread that iterates.

    Args:
        device: Where batches go.
        framework: Who reads them.
        budget_bytes: Most bytes in slots.
        timeout_s: How long `wait_free` waits.
        receiver: How batches get to arrays on the device, for a framework that has them there.
        verify: Whether batches are compared with what was written, and slots that come back are poisoned.
        shared: Whether worker processes write into the slots.
    """

    def __init__(
        self,
        device: Device,
        framework: Framework,
        budget_bytes: int,
        timeout_s: float,
        receiver: Receiver | None = None,
        *,
        verify: bool = False,
        shared: bool = False,
    ) -> None:
        self.device = device
        self.framework = framework
        self.inbox: _waiting.Inbox[Work | weakref.ref[Any]] = _waiting.Inbox()
        self.ring = Ring(1, name="the feed")
        self._stream = device.stream("feed")
        self._receiver = receiver
        mirrored = receiver is None or receiver.mirrored
        self.pool = SlotPool(device, budget_bytes, name="the feed", mirrored=mirrored, shared=shared)
        self.host_syncs = 0
        self._party = f"{framework.name}@{id(self):x}"  # one ring's sequence numbers say nothing of another's
        self._timeout_s = timeout_s
        self._loans: dict[weakref.ref[Any], tuple[Lease, Fence]] = {}
        self._largest_bytes = 1
        self._verifier = Verifier(device, framework, self._stream, timeout_s) if verify else None

    def claim(self, slot_bytes: int) -> Lease | None:
        """Take a free slot, if there is one; `slot_bytes` bounds how many the budget allows.

        Raises:
            BoundError: Not even one slot fits the budget.
        """
        self._largest_bytes = max(self._largest_bytes, slot_bytes)
        if self._largest_bytes > self.pool.budget_bytes:
            raise BoundError(
                f"one batch takes {self._largest_bytes:,} bytes",
                why=f"the feed may use {self.pool.budget_bytes:,}",
                hint="raise budget_bytes, or make batches smaller",
            )
        self.ring.limit = self.pool.budget_bytes // self._largest_bytes
        lease = self.ring.claim_nowait()
        self.pool.idle = self.ring.free
        if self._verifier is not None:
            self._verifier.sweep()
        return lease

    def memory_of(self, lease: Lease) -> Callable[[int], SlotMemory]:
        """Return the function that a worker gets its slot's memory from."""
        slot = lease.slot
        return lambda size_bytes: self.pool.memory(slot, size_bytes)

    def carry(self, work: Work, memory: SlotMemory) -> Fence:
        """Send a filled slot to the device. Called on a worker, which then lets go of the slot.

        Returns:
            When the bytes are on the device.
        """
        if work.layout is None:
            return work.ready
        size = work.layout.size_bytes
        if self._verifier is not None:
            self._verifier.filled(work, memory)
        if self._receiver is not None:
            shapes = work.layout.shapes(work.trim)
            leaves = [replace(leaf, shape=shape) for leaf, shape in zip(work.layout.leaves, shapes, strict=True)]
            parts = work.parts or [
                Part(start, memory.staging.slice(start, length)) for start, length in work.layout.runs(work.trim)
            ]
            work.carried = self._receiver.carry(memory, leaves, size, parts)
            return work.carried.ready
        if self.device.host_visible:
            return work.ready
        self.device.copy(memory.device.slice(0, size), memory.staging.slice(0, size), self._stream)
        return self.device.record(self._stream)

    def hand_over(self, work: Work) -> Any:
        """Lend a batch to the consumer; its slot comes back when the consumer's last use of it is done.

        Ordering: the consumer's reads come after the fence of the lease; the slot's next write comes after the end of
            the loan, which is when the last array, view or queued computation over it has let go.

        Blocks: until the copy has landed, where the consumer reads on the host and the device is not the host. Never
            where the framework has arrays on the device.

        Raises:
            DeviceError: The copy failed.
            CorruptionError: With `verify`, a batch is not what was written.
        """
        lease, layout = work.lease, work.layout
        if layout is None:
            raise InternalError(f"batch {work.number} has no layout")
        if self._receiver is not None and work.carried is not None:
            token = _Token()
            self._lend(weakref.ref(token, self.inbox.post), lease, work.carried.read)
            arrays = self._receiver.hand_over(work.carried, token)
            work.carried = None
            return self._rebuilt(arrays, work, layout)
        if lease.fence.points:
            self._wait_for(lease, work.number)
        memory = self.pool.memory(lease.slot, layout.size_bytes).device
        loan = Loan(memory)
        self._lend(loan.on_end(self.inbox.post), lease, Fence.EMPTY)
        if _events.observed():
            timeline, read = _events.host_timeline(), f"{self._party} read"  # on the host, from here on
            _events.emit(_events.Access(timeline, memory.region, "read", read, site=here()))
        root = np.asarray(loan)
        shapes = layout.shapes(work.trim)
        parts = [shaped(root, leaf, shape) for leaf, shape in zip(layout.leaves, shapes, strict=True)]
        return self._rebuilt([self.framework.lend(part) for part in parts] if work.whole else parts, work, layout)

    def _wait_for(self, lease: Lease, number: int) -> None:
        """Wait until a slot is written; if that fails nobody will read it, and the slot comes back."""
        self.host_syncs += 1
        try:
            _waiting.wait(lease.fence, timeout_s=self._timeout_s, what=f"the copy of batch {number}")
        except BaseException:
            self.ring.retire(lease)
            raise

    def _rebuilt(self, arrays: list[Any], work: Work, layout: Layout) -> Any:
        if self._verifier is not None:
            self._verifier.check(work, arrays)
        if work.extras:
            for position, value in sorted(work.extras.items()):
                arrays.insert(position, value)
        return layout.structure.rebuild(arrays)

    def _lend(self, reference: weakref.ref[Any], lease: Lease, read: Fence) -> None:
        """Note that a consumer has the slot of `lease` until `reference` dies, and a copy reads it until `read`."""
        self._loans[reference] = (lease, read)
        self._emit(lease, "lent")

    def returned(self, reference: weakref.ref[Any]) -> None:
        """Take in that a loan is over."""
        lease, read = self._loans.pop(reference)
        self._emit(lease, "returned")
        self.ring.retire(lease, read)
        if self._verifier is not None:  # else the ring asks for the proof when it needs the slot
            self.ring.collect()
            self._verifier.sweep()

    def _emit(self, lease: Lease, what: Literal["lent", "returned"]) -> None:
        if _events.observed():
            region = self.pool.memory(lease.slot, 1).device.region
            timeline = _events.host_timeline()
            _events.emit(_events.Handoff(timeline, region, what, self._party, lease.sequence, "slot", here()))

    def wait_free(self) -> Work | weakref.ref[Any] | None:
        """Block until something comes back, while every slot is lent, or a copy still reads it.

        Returns:
            The message that says so; None if the copy that was under way the longest is done.

        Raises:
            BoundError: Nothing did in time; the message says who holds what.
            DeviceError: The copy failed.
        """
        reading = next(iter(self.ring.leases(LeaseState.RETIRING)), None)
        if reading is not None:  # the link is what everybody waits for
            what = f"the copy of batch {reading.sequence} to {self.device.name}"
            _waiting.wait(reading.fence, timeout_s=self._timeout_s, what=what)
            self.ring.collect()
            return None
        deadline = time.monotonic() + self._timeout_s
        message = self.inbox.wait_take(min(self._timeout_s, _PATIENCE_S))
        if message is not None:
            return message
        gc.collect()  # a batch in a reference cycle is not in use any more; slow, so not where a device is just behind
        grumbled = False
        while (left_s := deadline - time.monotonic()) > 0:
            message = self.inbox.wait_take(min(left_s, _GRUMBLE_S))
            if message is not None:
                return message
            if left_s > _GRUMBLE_S and not grumbled:
                warnings.warn(
                    f"the feed waits for a slot: {self._holders()}; {_HOLDERS_HINT}", RuntimeWarning, stacklevel=5
                )
                grumbled = True
        raise BoundError(f"no slot came back in {self._timeout_s:g} s", why=self._holders(), hint=_HOLDERS_HINT)

    def _holders(self) -> str:
        lent = [lease.sequence for lease in self.ring.leases(LeaseState.LENT)]
        shown = ", ".join(map(str, lent[:6])) + (", ..." if len(lent) > 6 else "")  # noqa: PLR2004 - a line's worth
        return (
            f"the consumer, or {self.framework.name} computing for it, still holds {len(lent)} of {self.ring.limit} "
            f"batches (numbers {shown}), {self.pool.allocated_bytes:,} of {self.pool.budget_bytes:,} bytes"
        )


_HOLDERS_HINT = "drop batches when done, copy what you keep, or raise budget_bytes"
