"""Memory behind the slots of a ring, within a budget of bytes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock.errors import BoundError

if TYPE_CHECKING:
    from interlock._core._lease import SlotIndex
    from interlock._core._protocols import Device, Memory


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SlotMemory:
    """The bytes of one slot. Who keeps more for a slot can hold this object weakly.

    Attributes:
        staging: Host memory that the device can copy to and from.
        device: The same bytes on the device; the same object as `staging` where the device's memory is host memory.
    """

    staging: Memory
    device: Memory


@final
class SlotPool:
    """Gives slots their memory on first use and enlarges it when a slot needs more.

    Args:
        device: Who allocates.
        budget_bytes: Most staging bytes in all slots together.
        name: Shown in messages.
        mirrored: Whether each slot also needs memory on the device (a feed does; a drain copies from its producer's).
        shared: Whether other processes map the staging memory.

    Attributes:
        budget_bytes: As given.
        allocated_bytes: Staging bytes in all slots now.
        idle: Slots that nobody uses, said by who claims them: their memory goes where another slot needs more.
    """

    def __init__(self, device: Device, budget_bytes: int, *, name: str, mirrored: bool, shared: bool = False) -> None:
        self._device = device
        self._shared = shared
        self._mirrored = mirrored and not device.host_visible
        self._name = name
        self._slots: dict[SlotIndex, SlotMemory] = {}
        self._lock = threading.Lock()
        self.budget_bytes = budget_bytes
        self.allocated_bytes = 0
        self.idle: tuple[SlotIndex, ...] = ()

    def memory(self, slot: SlotIndex, size_bytes: int) -> SlotMemory:
        """Return the memory of a slot, at least `size_bytes` of it. Only for the holder of a lease in FILLING.

        Raises:
            BoundError: The budget does not allow it.
            MemoryError: The device has no such amount.
        """
        with self._lock:
            known = self._slots.get(slot)
            if known is not None and known.staging.size_bytes >= size_bytes:
                return known
            held = known.staging.size_bytes if known is not None else 0
            for other in self.idle:
                if other != slot and self.allocated_bytes - held + size_bytes > self.budget_bytes:
                    self._let_go(other)
            if self.allocated_bytes - held + size_bytes > self.budget_bytes:
                raise BoundError(
                    f"{self._name} needs a slot of {size_bytes:,} bytes",
                    why=f"{self.allocated_bytes - held:,} of its {self.budget_bytes:,} bytes are in other slots",
                    hint="raise budget_bytes, or make batches smaller",
                )
            self._let_go(slot)
            staging = self._device.allocate_host(size_bytes, shared=self._shared)
            device = self._device.allocate(size_bytes) if self._mirrored else staging
            self.allocated_bytes += size_bytes
            self._slots[slot] = SlotMemory(staging, device)
            return self._slots[slot]

    def fits(self, slot: SlotIndex, size_bytes: int) -> bool:
        """Tell whether a slot has memory enough, so that `memory` need not make any."""
        known = self._slots.get(slot)
        return known is not None and known.staging.size_bytes >= size_bytes

    def drop(self, slot: SlotIndex) -> None:
        """Give the memory of a free slot back to the device."""
        with self._lock:
            self._let_go(slot)

    def _let_go(self, slot: SlotIndex) -> None:
        known = self._slots.pop(slot, None)
        if known is not None:
            self.allocated_bytes -= known.staging.size_bytes
