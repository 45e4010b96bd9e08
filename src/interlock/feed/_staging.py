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
from interlock._core._handover import Leaf, Placement, StreamDevice, SupportsReceiver
from interlock._core._lease import LeaseState
from interlock._core._loan import Loan
from interlock._core._pool import SlotPool
from interlock._core._ring import Ring
from interlock._core._sites import here
from interlock.devices import open_device
from interlock.errors import BoundError, InternalError, UsageError
from interlock.feed._layout import shaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._fence import Timeline
    from interlock._core._handover import Receiver
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Framework
    from interlock.feed._work import Work

_ANYHOW = Placement()
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
        placement: How the consumer wants its arrays.

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
    ) -> None:
        self.device = device
        self.framework = framework
        self.inbox: _waiting.Inbox[Work | weakref.ref[Any]] = _waiting.Inbox()
        self.ring = Ring(1, name="the feed")
        self._stream = device.stream("feed")
        self._receiver = _receiver_of(framework, device, self._stream, placement)
        mirrored = self._receiver is None or self._receiver.mirrored
        self.pool = SlotPool(device, budget_bytes, name="the feed", mirrored=mirrored)
        self.host_syncs = 0
        self._party = f"{framework.name}@{id(self):x}"  # one ring's sequence numbers say nothing of another's
        self._timeout_s = timeout_s
        self._loans: dict[weakref.ref[Any], tuple[Lease, Fence]] = {}
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
        if work.layout is None:
            return work.ready
        size = work.layout.size_bytes
        if self._receiver is not None:
            leaves = [replace(leaf, shape=_trimmed(leaf, work.trim)) for leaf in work.layout.leaves]
            work.carried = self._receiver.carry(memory, leaves, size)
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
        """
        lease, layout = work.lease, work.layout
        if layout is None:
            raise InternalError(f"batch {work.number} has no layout")
        if self._receiver is not None and work.carried is not None:
            token = _Token()
            self._lend(weakref.ref(token, self.inbox.post), lease, work.carried.read)
            arrays = self._receiver.hand_over(work.carried, token)
            work.carried = None
            return layout.structure.rebuild(_with_extras(arrays, work))
        if lease.fence.points:
            _waiting.wait(lease.fence, timeout_s=self._timeout_s, what=f"the copy of batch {work.number}")
            self.host_syncs += 1
        memory = self.pool.memory(lease.slot, layout.size_bytes).device
        loan = Loan(memory)
        self._lend(loan.on_end(self.inbox.post), lease, Fence.EMPTY)
        if _events.observed():
            timeline, read = _events.host_timeline(), f"{self._party} read"  # on the host, from here on
            _events.emit(_events.Access(timeline, memory.region, "read", read, site=here()))
        root = np.asarray(loan)
        arrays = [self.framework.lend(shaped(root, leaf, _trimmed(leaf, work.trim))) for leaf in layout.leaves]
        return layout.structure.rebuild(_with_extras(arrays, work))

    def _lend(self, reference: weakref.ref[Any], lease: Lease, read: Fence) -> None:
        """Note that a consumer has the slot of `lease` until `reference` dies, and a copy reads it until `read`."""
        self._loans[reference] = (lease, read)
        self._emit(lease, "lent")

    def returned(self, reference: weakref.ref[Any]) -> None:
        """Take in that a loan is over."""
        lease, read = self._loans.pop(reference)
        self._emit(lease, "returned")
        self.ring.retire(lease, read)
        self.ring.collect()

    def _emit(self, lease: Lease, what: Literal["lent", "returned"]) -> None:
        if _events.observed():
            region = self.pool.memory(lease.slot, 1).device.region
            timeline = _events.host_timeline()
            _events.emit(_events.Handoff(timeline, region, what, self._party, lease.sequence, "slot", here()))

    def close(self) -> None:
        """Let go of what the framework keeps between batches."""
        if self._receiver is not None:
            self._receiver.close()

    def wait_free(self) -> Work | weakref.ref[Any]:
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


def _receiver_of(framework: Framework, device: Device, stream: Timeline, placement: Placement) -> Receiver | None:
    receiver = None
    if isinstance(framework, SupportsReceiver):
        receiver = framework.receiver(device, stream, placement, open_device)
    if receiver is None and isinstance(device, StreamDevice):
        raise UsageError(
            f"{framework.name} has no arrays on {device.name}",
            hint="feed torch, jax or cupy, or leave the device out",
        )
    if receiver is None and placement.fixed:
        raise UsageError("fixed addresses need arrays on a device", why=f"these are on {device.name}")
    return receiver


def _trimmed(leaf: Leaf, rows: int | None) -> tuple[int, ...]:
    return leaf.shape if rows is None else (rows, *leaf.shape[1:])


def _with_extras(arrays: list[Any], work: Work) -> list[Any]:
    for position, value in sorted(work.extras.items()):
        arrays.insert(position, value)
    return arrays


_HOLDERS_HINT = "drop batches when done, copy what you keep, or raise budget_bytes"
