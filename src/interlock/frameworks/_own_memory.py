"""Batches in a framework's own memory on a device: what PyTorch and CuPy have in common.

A batch is copied from its slot straight to memory that the framework's allocator gave on the copy stream, so memory
statistics, limits and out-of-memory handling are those that its users know. Only the staging side of the slot is ours,
and it is free when the copy has read it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from interlock._core._handover import Carried, Part, StreamDevice
from interlock._core._protocols import Device
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock._core._fence import Fence, Timeline
    from interlock._core._handover import Leaf
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Memory


_DISTANCE = 2
"""Hand-overs that copies may be ahead of the consumer's stream, besides what was on its way already."""


class DriverDevice(Device, StreamDevice, Protocol):
    """A device whose streams and memory the framework uses too."""


class Allocator(Protocol):
    """One framework's memory on one device."""

    def allocate(self, size_bytes: int, *, copying: bool) -> Any:
        """Return fresh memory.

        Args:
            size_bytes: How much.
            copying: On the copy stream, from any thread; else on the calling thread's current stream.
        """
        ...

    def address(self, root: Any) -> int:
        """Return where memory from `allocate` begins."""
        ...

    def arrays(self, root: Any, leaves: Sequence[Leaf]) -> list[Any]:
        """Return an array per leaf over memory from `allocate`, which they keep alive.

        Raises:
            UsageError: The framework has no array of that dtype.
        """
        ...

    def current(self) -> tuple[int, object]:
        """Return the calling thread's current stream on the device: its handle, and what keeps it there."""
        ...

    def lend(self, root: Any) -> None:
        """Take in that the calling thread's current stream uses memory that was allocated on the copy stream.

        Ordering: when the memory is freed, it is used again after what the current stream holds then.
        """
        ...

    def close(self) -> None:
        """Let go of what is kept between batches."""
        ...


@final
@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch in the framework's memory."""

    root: Any
    memory: Memory
    arrays: list[Any]


@final
@dataclass(slots=True)
class _Place:
    """The memory that every batch is copied to, so that a CUDA graph finds it at the same addresses.

    Attributes:
        leaves: What it holds.
        memory: Its bytes.
        arrays: One per leaf.
        last: The stream that had it last.
        keeper: What keeps that stream from being destroyed.
    """

    leaves: list[Leaf]
    memory: Memory
    arrays: list[Any]
    last: Timeline
    keeper: object


@final
class OwnMemoryReceiver:
    """As in `Receiver`.

    Args:
        allocator: The framework's.
        device: Where batches go.
        stream: Its stream for copies.
        fixed: Whether every batch is copied once more, to the same addresses.

    Copies: once over the link; with `fixed` once more on the device.
    """

    mirrored = False

    def __init__(self, allocator: Allocator, device: DriverDevice, stream: Timeline, *, fixed: bool) -> None:
        self._allocator = allocator
        self._device = device
        self._stream = stream
        self._fixed = fixed
        self._place: _Place | None = None
        self._taken: deque[Fence] = deque()

    def carry(self, slot: SlotMemory, leaves: Sequence[Leaf], size_bytes: int, parts: Sequence[Part] = ()) -> Carried:
        """As in `Receiver`.

        Raises:
            UsageError: The framework has no array of a leaf's dtype.
            MemoryError: The device has no room; each framework raises its own kind of error for that.
        """
        root = self._allocator.allocate(size_bytes, copying=True)
        arrays = self._allocator.arrays(root, leaves)
        memory = self._device.wrap(self._allocator.address(root), size_bytes, root)
        for part in parts or (Part(0, slot.staging.slice(0, size_bytes)),):
            target = memory.slice(part.offset_bytes, part.memory.size_bytes)
            self._device.copy(target, part.memory, self._stream)
        done = self._device.record(self._stream)
        return Carried(leaves, ready=done, read=done, held=_Batch(root, memory, arrays))

    def hand_over(self, carried: Carried, token: object) -> list[Any]:
        """As in `Receiver`.

        Raises:
            UsageError: With `fixed`, the batch does not look like the first one.
        """
        del token  # nothing reads the slot after `carried.read`
        batch: _Batch = carried.held
        handle, keeper = self._allocator.current()
        current = self._device.adopt(handle)
        self._keep_distance(current)
        self._device.wait(current, carried.ready)
        self._allocator.lend(batch.root)
        return self._settle(batch, list(carried.leaves), current, keeper) if self._fixed else batch.arrays

    def _keep_distance(self, current: Timeline) -> None:
        """Let the copies to come wait for an earlier hand-over on the consumer's stream.

        The host may be hundreds of steps ahead of the device, and nothing else would keep all of their batches from
        filling its memory: so slots come back, and batches are made, at the speed of the consumer's device.
        """
        self._taken.append(self._device.record(current))
        if len(self._taken) > _DISTANCE:
            self._device.wait(self._stream, self._taken.popleft())

    def _settle(self, batch: _Batch, leaves: list[Leaf], current: Timeline, keeper: object) -> list[Any]:
        """Copy a batch to the fixed addresses.

        Ordering: behind what was queued on the stream that had the batch before, as the replay of a graph.
        """
        place = self._place
        if place is None:
            root = self._allocator.allocate(batch.memory.size_bytes, copying=False)
            memory = self._device.wrap(self._allocator.address(root), batch.memory.size_bytes, root)
            place = self._place = _Place(leaves, memory, self._allocator.arrays(root, leaves), current, keeper)
        _check_same(place.leaves, leaves)
        if place.last is not current:
            self._device.wait(current, self._device.record(place.last))
            place.last = current
        place.keeper = keeper
        self._device.copy(place.memory, batch.memory, current)
        return list(place.arrays)

    def close(self) -> None:
        """As in `Receiver`."""
        self._place = None
        self._allocator.close()


def _check_same(first: Sequence[Leaf], leaves: Sequence[Leaf]) -> None:
    if len(first) != len(leaves):
        raise UsageError(f"a batch has {len(leaves)} arrays, the first had {len(first)}", why=_WHY_SAME)
    for one, leaf in zip(first, leaves, strict=True):
        if (one.shape, one.dtype, one.offset_bytes) != (leaf.shape, leaf.dtype, leaf.offset_bytes):
            raise UsageError(
                f"{leaf.label} is {leaf.dtype} {leaf.shape}, in the first batch it was {one.dtype} {one.shape}",
                why=_WHY_SAME,
                hint="pass drop_last=True if it is the last batch that is short, else pad the batches",
            )


_WHY_SAME = "with fixed=True all batches have the addresses of the first"
