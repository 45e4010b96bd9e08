"""Where rows wait between their producer and the writer: slots per device, within one budget of bytes.

A slot of a device that the host cannot address has two sides. The snapshot is a copy into the device side, in the order
of the producer's stream; from there one copy per put takes all leaves over the link to the staging side, on a stream of
our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._events import Access, Handoff, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._pool import SlotPool
from interlock._core._ring import Ring
from interlock._core._sites import here
from interlock.drain._leaves import aligned
from interlock.errors import BoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._fence import Timeline
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, DeviceArray, Export, Memory

_MOST_SLOTS = 256


@final
@dataclass(slots=True)
class Claim:
    """A slot in use by one put."""

    staging: Staging
    lease: Lease
    memory: SlotMemory
    size_bytes: int

    def lend(self, fence: Fence) -> None:
        """Hand the slot to the writer, who may read once `fence` is reached."""
        self.staging.ring.publish(self.lease, fence)
        self.staging.ring.lend_nowait()
        self._emit("lent")

    def retire(self) -> None:
        """Take the slot back: the writer is done."""
        self.staging.ring.retire(self.lease)
        self.staging.used_bytes -= self.memory.staging.size_bytes
        self._emit("returned")

    def cancel(self, fence: Fence = Fence.EMPTY) -> None:
        """Give the slot back; `fence` says when what was queued on it is done."""
        self.staging.ring.cancel(self.lease, fence)
        self.staging.used_bytes -= self.memory.staging.size_bytes

    def _emit(self, what: Any) -> None:
        if observed():
            region = self.memory.staging.region
            emit(Handoff(host_timeline(), region, what, self.staging.party, self.lease.sequence, "slot", here()))


@final
class Staging:
    """The slots of one device.

    Args:
        device: Where they are.
        budget_bytes: Most bytes in them.
        snapshot: Whether values are snapshot on the device.

    Attributes:
        ring: States of the slots.
        pool: Memory of the slots.
        used_bytes: Bytes of the slots that are not free.
    """

    def __init__(self, device: Device, budget_bytes: int, *, snapshot: bool) -> None:
        self.device = device
        self.ring = Ring(_MOST_SLOTS, name=f"the drain's ring on {device.name}")
        self.pool = SlotPool(device, budget_bytes, name=f"the drain on {device.name}", mirrored=snapshot)
        self.used_bytes = 0
        self.party = f"drain writer@{id(self):x}"  # one ring's sequence numbers say nothing of another's
        self._snapshot = snapshot
        self._side = device.stream("drain")

    def claim(self, size_bytes: int, room_bytes: int) -> Claim | None:
        """Take a slot, or return None if there is none.

        Args:
            size_bytes: How large it must be.
            room_bytes: Most bytes for all slots of this device.
        """
        lease = self.ring.claim_nowait()
        if lease is None:
            return None
        self.pool.budget_bytes = room_bytes
        try:
            memory = self.pool.memory(lease.slot, size_bytes)
        except BoundError:
            self.ring.cancel(lease)
            return None
        self.used_bytes += memory.staging.size_bytes
        return Claim(self, lease, memory, size_bytes)

    def drop_idle(self) -> None:
        """Give the memory of the free slots back to the device."""
        self.ring.collect()
        leases = []
        while self.ring.statistics().free:
            lease = self.ring.claim_nowait()
            if lease is None:
                break
            self.pool.drop(lease.slot)
            leases.append(lease)
        for lease in leases:
            self.ring.cancel(lease)

    def fence_of_copies(self) -> Fence:
        """Return the fence behind every copy that was queued on our own stream."""
        return self.device.record(self._side)

    def fill_from_host(self, claim: Claim, exports: Mapping[str, Export]) -> dict[str, Callable[[], npt.NDArray[Any]]]:
        """Copy host arrays into the slot at once; return a reader for each.

        Blocks: while it copies.
        """
        readers = {}
        offset = 0
        for name, export in exports.items():
            target = _view(claim.memory.staging, offset, export.dtype, export.shape)
            np.copyto(target, export.read())
            readers[name] = _always(target)
            offset += aligned(target.nbytes)
        if observed():
            emit(Access(host_timeline(), claim.memory.staging.region, "write", "drain.put", site=here()))
        return readers

    def fill_from_device(
        self, claim: Claim, arrays: Mapping[str, DeviceArray]
    ) -> tuple[dict[str, Callable[[], npt.NDArray[Any]]], Fence, Fence]:
        """Queue the copies of device arrays into the slot.

        Returns:
            Readers, the fence after which they may be called, and a fence to wait for before the caller goes on.

        Ordering:
            The snapshot comes before whatever the producer queues next on the streams in `ready`. Where `ready` names
            no stream of the device nothing can order that: the last fence says when that snapshot is taken.
        """
        readers = {}
        offset = 0
        unordered = Fence.EMPTY
        for name, array in arrays.items():
            dtype = np.dtype(array.dtype)
            size_bytes = dtype.itemsize * int(np.prod(array.shape))
            readers[name] = _later(claim.memory.staging, offset, dtype, array.shape)
            target = claim.memory.device if self._snapshot else claim.memory.staging
            source = array.memory.slice(0, size_bytes)
            unordered = unordered.join(self._copy_in(target.slice(offset, size_bytes), source, array.ready))
            offset += aligned(size_bytes)
        if self._snapshot and not self.device.host_visible:
            size = claim.size_bytes
            self.device.copy(claim.memory.staging.slice(0, size), claim.memory.device.slice(0, size), self._side)
        return readers, self.device.record(self._side), unordered

    def _copy_in(self, target: Memory, source: Memory, ready: Fence) -> Fence:
        """Copy a value into the slot and make our stream wait for it; return what is not ordered for the producer."""
        own = self._own_streams(ready) if self._snapshot else []
        stream = own[0] if own else self._side
        self.device.wait(stream, ready)
        self.device.copy(target, source, stream)
        if not own:
            return self.device.record(self._side) if self._snapshot else Fence.EMPTY
        taken = self.device.record(stream)
        for other in (*own[1:], self._side):
            self.device.wait(other, taken)
        return Fence.EMPTY

    def _own_streams(self, ready: Fence) -> list[Timeline]:
        """Return the timelines of `ready` that are streams of our device: what is queued there now comes in order."""
        own = []
        for timeline, _ in ready.points:
            try:
                self.device.record(timeline)
            except UsageError:
                continue
            own.append(timeline)
        return own


def _view(memory: Memory, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    native = dtype.newbyteorder("=")
    count = int(np.prod(shape))
    return np.frombuffer(memory.view(), native, count, offset).reshape(tuple(shape))


def _always(array: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
    return lambda: array


def _later(memory: Memory, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Callable[[], npt.NDArray[Any]]:
    return lambda: _view(memory, offset, dtype, shape)
