"""The slots of a feed: claimed for workers, carried to the device, lent to the consumer, taken back when let go."""

from __future__ import annotations

import gc
import time
import warnings
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock import _waiting
from interlock._core import _events
from interlock._core._lease import LeaseState
from interlock._core._loan import Loan
from interlock._core._pool import SlotPool
from interlock._core._ring import Ring
from interlock._core._sites import here
from interlock.errors import BoundError, InternalError
from interlock.feed._layout import shaped

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    import numpy.typing as npt

    from interlock._core._fence import Fence
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Framework
    from interlock.feed._work import Work

_GRUMBLE_S = 5.0
"""After so many seconds without a free slot the feed says what holds them."""


@final
class Staging:
    """A ring with its memory, its device and the framework that it lends to. Belongs to the thread that iterates.

    Args:
        device: Where batches go.
        framework: Who reads them.
        budget_bytes: Most bytes in slots.
        timeout_s: How long `wait_free` waits.
    """

    def __init__(self, device: Device, framework: Framework, budget_bytes: int, timeout_s: float) -> None:
        self.device = device
        self.framework = framework
        self.inbox: _waiting.Inbox[Work | weakref.ref[Loan]] = _waiting.Inbox()
        self.ring = Ring(1, name="the feed")
        self.pool = SlotPool(device, budget_bytes, name="the feed", mirrored=True)
        self.host_syncs = 0
        self._party = f"{framework.name}@{id(self):x}"  # one ring's sequence numbers say nothing of another's
        self._timeout_s = timeout_s
        self._stream = device.stream("feed")
        self._loans: dict[weakref.ref[Loan], Lease] = {}
        self._largest_bytes = 1

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
        return self.ring.claim_nowait()

    def memory_of(self, lease: Lease) -> Callable[[int], SlotMemory]:
        """Return the function that a worker gets its slot's memory from."""
        slot = lease.slot
        return lambda size_bytes: self.pool.memory(slot, size_bytes)

    def carry(self, work: Work, memory: SlotMemory) -> Fence:
        """Send a filled slot to the device. Called on a worker, which then lets go of the slot.

        Returns:
            When the bytes are on the device.
        """
        if self.device.host_visible or work.layout is None:
            return work.ready
        size = work.layout.size_bytes
        self.device.copy(memory.device.slice(0, size), memory.staging.slice(0, size), self._stream)
        return self.device.record(self._stream)

    def hand_over(self, work: Work) -> Any:
        """Lend a batch to the consumer; its slot comes back when the consumer's last use of it is done.

        Ordering: the consumer's reads come after the fence of the lease; the slot's next write comes after the end of
            the loan, which is when the last array, view or queued computation over it has let go.

        Blocks: until the copy has landed, where the consumer reads on the host and the device is not the host.
        """
        lease, layout = work.lease, work.layout
        if layout is None:
            raise InternalError(f"batch {work.number} has no layout")
        if lease.fence.points:
            _waiting.wait(lease.fence, timeout_s=self._timeout_s, what=f"the copy of batch {work.number}")
            self.host_syncs += 1
        memory = self.pool.memory(lease.slot, layout.size_bytes).device
        loan = Loan(memory)
        self._loans[loan.on_end(self.inbox.post)] = lease
        if _events.observed():
            timeline = _events.host_timeline()
            loaned = _events.Handoff(timeline, memory.region, "lent", self._party, lease.sequence, "slot", here())
            _events.emit(loaned)
            read = f"{self._party} read"  # every framework served so far reads on the host, from here on
            _events.emit(_events.Access(timeline, memory.region, "read", read, site=here()))
        arrays = self._arrays(np.asarray(loan), work)
        return layout.structure.rebuild(arrays)

    def _arrays(self, root: npt.NDArray[np.uint8], work: Work) -> list[Any]:
        arrays: list[Any] = []
        layout = work.layout
        assert layout is not None  # noqa: S101 - checked by the caller
        for leaf in layout.leaves:
            shape = leaf.shape if work.trim is None else (work.trim, *leaf.shape[1:])
            arrays.append(self.framework.lend(shaped(root, leaf, shape)))
        for position, value in sorted(work.extras.items()):
            arrays.insert(position, value)
        return arrays

    def returned(self, reference: weakref.ref[Loan]) -> None:
        """Take in that a loan is over."""
        lease = self._loans.pop(reference)
        if _events.observed():
            memory = self.pool.memory(lease.slot, 1).device
            timeline = _events.host_timeline()
            _events.emit(_events.Handoff(timeline, memory.region, "returned", self._party, lease.sequence))
        self.ring.retire(lease)
        self.ring.collect()

    def wait_free(self) -> Work | weakref.ref[Loan]:
        """Block until something comes back, while every slot is lent.

        Raises:
            BoundError: Nothing did in time; the message says who holds what.
        """
        deadline = time.monotonic() + self._timeout_s
        gc.collect()  # a batch in a reference cycle is not in use any more
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
