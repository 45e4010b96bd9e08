"""Where rows wait between their producer and the writer: slots per device, within one budget of bytes.

A slot is host memory that its device can copy into. What may change on its device gets a snapshot first: a framework's
own, or, of memory that no framework holds, a copy into device memory that the slot keeps for that (its mirror), in the
order of the producer's stream. From there it crosses the link on a stream of our own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from interlock._core._events import Access, Handoff, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._pool import SlotPool
from interlock._core._ring import Ring
from interlock._core._sites import here
from interlock.drain._blocks import blocks_of, landed_of, size_of
from interlock.drain._leaves import aligned
from interlock.errors import BoundError, DeviceError, InterlockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._fence import Timeline
    from interlock._core._lease import Lease, SlotIndex
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, DeviceArray, Export, Memory, Pieces
    from interlock.drain._blocks import Landed
    from interlock.drain._leaves import Reader
    from interlock.drain._verify import Poisoner

K = TypeVar("K")

_MOST_SLOTS = 256
_SIDE_STREAM = "drain"
"""Stream of each device that carries values to the host; frameworks that export for a stream name it too."""


@final
@dataclass(slots=True)
class Claim:
    """A slot in use by one put.

    Attributes:
        staging: Whose slot it is.
        lease: The right to use it.
        memory: Its bytes.
        mirror: As many bytes on the device, if snapshots are to be taken there.
    """

    staging: Staging
    lease: Lease
    memory: SlotMemory
    mirror: Memory | None

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
        if self.staging.poisoner is not None:
            self.staging.poisoner.spread(self.memory, self.mirror)

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
        snapshot: Whether values that may change are snapshot on the device.
        poisoner: Overwrites slots that come back, if that is wanted.

    Attributes:
        ring: States of the slots.
        pool: Memory of the slots.
        used_bytes: Bytes of the slots that are not free.
    """

    def __init__(self, device: Device, budget_bytes: int, *, snapshot: bool, poisoner: Poisoner | None = None) -> None:
        self.device = device
        self.ring = Ring(_MOST_SLOTS, name=f"the drain's ring on {device.name}")
        self.pool = SlotPool(device, budget_bytes, name=f"the drain on {device.name}", mirrored=False)
        self.used_bytes = 0
        self.party = f"drain writer@{id(self):x}"  # one ring's sequence numbers say nothing of another's
        self.poisoner = poisoner
        self._snapshot = snapshot
        self._side = device.stream(_SIDE_STREAM)
        self._carriers = {id(device): device}
        self._mirrors: dict[SlotIndex, Memory] = {}

    def claim(
        self, size_bytes: int, room_bytes: int, values: Iterable[Any] = (), *, enough: int | None = None
    ) -> Claim | None:
        """Take a slot, or return None if there is none.

        Args:
            size_bytes: How large it must be.
            room_bytes: Most bytes for all slots of this device.
            values: What is to go into it.
            enough: How many there may be before another is made, if that can wait.

        Raises:
            DeviceError: There is no such amount of memory, though the budget allows it.
        """
        lease = self._reuse(size_bytes)
        if lease is None and (enough is None or self.ring.statistics().slots < enough):
            lease = self.ring.claim_nowait()
        if lease is None:
            return None
        self.pool.budget_bytes = room_bytes
        try:
            memory = self.pool.memory(lease.slot, size_bytes)
            mirror = self._mirror(lease.slot, size_bytes) if any(map(self._needs_mirror, values)) else None
        except BoundError:
            self.ring.cancel(lease)
            return None
        except MemoryError as error:
            self.ring.cancel(lease)
            raise DeviceError(
                f"{self.device.name} has no memory for a slot of {size_bytes:,} bytes",
                why=str(error),
                hint="lower the drain's budget_bytes, or put fewer rows at once",
            ) from error
        except BaseException:
            self.ring.cancel(lease)
            raise
        self.used_bytes += memory.staging.size_bytes
        return Claim(self, lease, memory, mirror)

    def _reuse(self, size_bytes: int) -> Lease | None:
        """Take a free slot that has memory enough, if there is one."""
        self.ring.collect()
        unfit = []
        found = None
        while found is None and self.ring.statistics().free:
            lease = self.ring.claim_nowait()
            if lease is not None and self.pool.fits(lease.slot, size_bytes):
                found = lease
            elif lease is not None:
                unfit.append(lease)
        for lease in unfit:
            self.ring.cancel(lease)
        return found

    def _needs_mirror(self, value: Any) -> bool:
        """Tell whether a value may change before it has crossed the link."""
        return self._snapshot and not self.device.host_visible and not getattr(value, "stable", True)

    def _mirror(self, slot: SlotIndex, size_bytes: int) -> Memory:
        known = self._mirrors.get(slot)
        if known is None or known.size_bytes < size_bytes:
            self._mirrors.pop(slot, None)
            known = self._mirrors[slot] = self.device.allocate(size_bytes)
        return known

    def drop_idle(self) -> None:
        """Give the memory of the free slots back to the device."""
        self.ring.collect()
        leases = []
        while self.ring.statistics().free:
            lease = self.ring.claim_nowait()
            if lease is None:
                break
            self.pool.drop(lease.slot)
            self._mirrors.pop(lease.slot, None)
            leases.append(lease)
        for lease in leases:
            self.ring.cancel(lease)

    def fence_of_copies(self) -> Fence:
        """Return the fence behind every copy into our slots that was queued on a stream of ours."""
        return _behind(self._carriers.values())

    def fill_from_host(self, claim: Claim, exports: Mapping[K, Export]) -> dict[K, Reader]:
        """Copy host arrays into the slot at once; return a reader for each.

        Blocks: while it copies.
        """
        readers = {}
        offset = 0
        for key, export in exports.items():
            target = _view(claim.memory.staging, offset, export.dtype, export.shape)
            np.copyto(target, export.read())
            readers[key] = _always(target)
            offset += aligned(target.nbytes)
        if observed():
            emit(Access(host_timeline(), claim.memory.staging.region, "write", "drain.put", site=here()))
        return readers

    def fill_from_device(
        self, claim: Claim, values: Mapping[K, DeviceArray | Pieces]
    ) -> tuple[dict[K, Reader], Fence, Fence]:
        """Queue the copies of device values into the slot.

        Returns:
            Readers, the fence after which they may be called, and a fence to wait for before the caller goes on.

        Ordering:
            The snapshot comes before whatever the producer queues next on the streams in `ready`. Where `ready` names
            no stream of the device nothing can order that: the last fence says when that snapshot is taken.
        """
        readers = {}
        offset = 0
        unordered = Fence.EMPTY
        devices = {id(self.device): self.device}
        for block in (block for value in values.values() for block in blocks_of(value)):
            devices[id(block.array.device)] = block.array.device
        self._carriers.update(devices)
        for key, value in values.items():
            for block in blocks_of(value):
                taken = self._bring(claim, block.array, offset + block.offset_bytes, block.size_bytes)
                unordered = unordered.join(taken)
            readers[key] = _later(claim.memory.staging, offset, landed_of(value))
            offset += aligned(size_of(value))
        return readers, _behind(devices.values()), unordered

    def _bring(self, claim: Claim, array: DeviceArray, offset: int, size: int) -> Fence:
        """Queue what takes one value to the slot; return what the caller's next write does not come after by itself."""
        device, side = array.device, array.device.stream(_SIDE_STREAM)
        target = claim.memory.staging.slice(offset, size)
        source = array.memory.slice(0, size)
        if array.stable or not self._snapshot:
            device.wait(side, array.ready)
            device.copy(target, source, side)
            return Fence.EMPTY
        own = self._own_streams(array.ready)
        stream = own[0] if own else side
        middle = claim.mirror.slice(offset, size) if claim.mirror is not None else target
        device.wait(stream, array.ready)
        device.copy(middle, source, stream)
        taken = device.record(stream)
        for other in (*own[1:], side) if own else ():
            device.wait(other, taken)
        if claim.mirror is not None:
            device.copy(target, middle, side)
        return Fence.EMPTY if own else taken

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

    def carry(
        self,
        claims: Sequence[Claim],
        array: DeviceArray,
        target: npt.NDArray[np.uint8],
        settle: Callable[[Fence], None],
    ) -> None:
        """Copy a value to plain host memory, in slabs: while one is copied out of its slot, the next crosses the link.

        Args:
            claims: Slots, all of one size.
            array: The value.
            target: Where it goes; its bytes, and no more.
            settle: Waits for a fence.

        Ordering: behind everything that is queued now on the streams in `ready`.

        Blocks: until the value has landed. So nothing that the caller does later can change it.
        """
        now = [self.device.record(stream) for stream in self._own_streams(array.ready)]
        self.device.wait(self._side, array.ready.join(*now))
        slab_bytes = claims[0].memory.staging.size_bytes
        flying: deque[tuple[Fence, int, Memory]] = deque()

        def land() -> None:
            fence, start, part = flying.popleft()
            settle(fence)
            np.copyto(target[start : start + part.size_bytes], np.frombuffer(part.view(), np.uint8))

        for number, start in enumerate(range(0, len(target), slab_bytes)):
            if len(flying) == len(claims):
                land()
            size = min(slab_bytes, len(target) - start)
            part = claims[number % len(claims)].memory.staging.slice(0, size)
            self.device.copy(part, array.memory.slice(start, size), self._side)
            flying.append((self.device.record(self._side), start, part))
        while flying:
            land()


def cancel_all(claims: Iterable[Claim]) -> None:
    """Give slots back, each once the copies that were queued into it are done."""
    for claim in claims:
        try:
            copies = claim.staging.fence_of_copies()
        except InterlockError as error:  # a lost device: nothing tells when its copies end
            copies = Fence.failed(error)
        claim.cancel(copies)


def _behind(devices: Iterable[Device]) -> Fence:
    """Return the fence behind everything on the side streams of `devices`."""
    return Fence.EMPTY.join(*(device.record(device.stream(_SIDE_STREAM)) for device in devices))


def _view(memory: Memory, offset: int, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    native = dtype.newbyteorder("=")
    count = int(np.prod(shape))
    return np.frombuffer(memory.view(), native, count, offset).reshape(tuple(shape))


def _always(array: npt.NDArray[Any]) -> Reader:
    return lambda: array


def _later(memory: Memory, offset: int, landed: Landed) -> Reader:
    return lambda: landed.read(memory.view(), offset)
