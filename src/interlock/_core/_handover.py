"""How a framework takes batches that lie in a device's memory: what feed and framework tell each other.

The feed knows slots and leases; the framework knows where its arrays live, on which stream their consumer reads, and
what proves that it is done. A `Receiver` is where the two meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from interlock._core._fence import Fence, Timeline
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Memory


@final
@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a batch, and where it lies in the slot.

    Attributes:
        name: Dotted name in the sample; empty for a lone array.
        shape: First axis rows.
        dtype: Element type.
        offset_bytes: Where it begins in the slot.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset_bytes: int

    @property
    def label(self) -> str:
        """The name as messages show it."""
        return f"leaf {self.name!r}" if self.name else "the array"

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@runtime_checkable
class StreamDevice(Protocol):
    """A `Device` whose streams and memory frameworks use too, as CUDA's. It has all that `Device` has."""

    @property
    def index(self) -> int:
        """Number of the device among those that the process sees, as frameworks count them."""
        ...

    def adopt(self, handle: int) -> Timeline:
        """Return the stream that frameworks know by `handle`, as a stream of this device; the same one each time.

        Args:
            handle: Address of the driver's stream; 0 and 1 are the legacy default stream, 2 the per-thread one.
        """
        ...

    def handle(self, stream: Timeline) -> int:
        """Return what frameworks know one of this device's streams by."""
        ...

    def wrap(self, address: int, size_bytes: int, owner: object) -> Memory:
        """Return memory of this device that somebody else allocated; it keeps `owner` alive.

        Ordering:
            `owner` is held until every copy that was queued through this device with the memory is done.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """How the consumer wants its arrays.

    Attributes:
        zero_copy: The arrays may be the slot itself, which then stays lent as long as they live.
        fixed: The arrays are the same memory for every batch, as a CUDA graph needs.
        sharding: The framework's own description of several devices, or None for one.
    """

    zero_copy: bool = False
    fixed: bool = False
    sharding: Any = None


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a batch that come from elsewhere than the staging side of its slot.

    Attributes:
        offset_bytes: Where they belong in the batch.
        memory: Where they are; the copy stream is ordered behind whoever wrote them.
    """

    offset_bytes: int
    memory: Memory


@final
@dataclass(slots=True)
class Carried:
    """A batch on its way to its consumer.

    Attributes:
        leaves: What is in it, with the shapes that the consumer sees.
        ready: When its bytes are on the device.
        read: When the host side of the slot was read for the last time.
        held: What the receiver itself needs to hand it over.
    """

    leaves: Sequence[Leaf]
    ready: Fence
    read: Fence
    held: Any = None


class Receiver(Protocol):
    """Takes batches to one framework's arrays on a device. Neither method waits.

    A slot is written again when `Carried.read` is reached and the token that `hand_over` got is gone.
    """

    @property
    def mirrored(self) -> bool:
        """Whether each slot needs a device side, which `carry` finds in `SlotMemory.device`."""
        ...

    def carry(self, slot: SlotMemory, leaves: Sequence[Leaf], size_bytes: int, parts: Sequence[Part] = ()) -> Carried:
        """Queue the copy of the first `size_bytes` bytes of a filled slot. Called on worker threads, several at once.

        Args:
            slot: The slot.
            leaves: What the batch has, with the shapes that the consumer is to see.
            size_bytes: Bytes of the batch.
            parts: Where its bytes are if not all are in the slot: then these alone are copied.

        Raises:
            UsageError: The framework has no array of some dtype, or cannot take `parts`.
            MemoryError: The framework has no memory for it.
        """
        ...

    def hand_over(self, carried: Carried, token: object) -> list[Any]:
        """Return the batch as arrays, one per leaf, that the consumer may use at once. Called on its own thread.

        Args:
            carried: From `carry`; given once.
            token: What reads the slot from now on must keep this alive, on a framework's threads too. A receiver whose
                framework has the batch in memory of its own lets it go.

        Ordering:
            The consumer's reads, on the stream that is its current one now, come after `carried.ready`.
        """
        ...

    def close(self) -> None:
        """Let go of what is kept between batches. Arrays that were handed over stay valid."""
        ...


@runtime_checkable
class SupportsReceiver(Protocol):
    """A framework that has arrays on devices."""

    def receiver(
        self, device: Device, stream: Timeline, placement: Placement, open_device: Callable[[str], Device]
    ) -> Receiver | None:
        """Return how batches get to this framework's arrays on `device`, or None if its arrays cannot live there.

        Args:
            device: Where batches go.
            stream: Stream of `device` for copies.
            placement: What the consumer wants.
            open_device: Opens further devices, where `placement.sharding` has several.

        Raises:
            UsageError: The framework cannot do what `placement` says.
        """
        ...
