"""Batches to JAX arrays on one CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._handover import Carried
from interlock.frameworks import _jax_imports
from interlock.frameworks._jax_unpack import arrival, prepare, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jax

    from interlock._core._fence import Fence, Timeline
    from interlock._core._handover import Leaf, Part, StreamDevice
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Memory


@final
class Side:
    """One device as both of us know it: how packed bytes in its memory become JAX arrays.

    Args:
        device: The device, as Interlock knows it.
        jax_device: As JAX knows it.
        imports: Where memory that XLA holds is noted.
        zero_copy: Whether arrays may be the memory itself.
    """

    def __init__(
        self, device: StreamDevice, jax_device: Any, imports: _jax_imports.Imports, *, zero_copy: bool
    ) -> None:
        self.device: Any = device  # a `Device` and a `StreamDevice`
        self.jax_device = jax_device
        self._imports = imports
        self._zero_copy = zero_copy

    def prepare(self, leaves: Sequence[Leaf], size_bytes: int) -> None:
        """Compile what the first batch of a layout needs, while the consumer does something else.

        Raises:
            UsageError: JAX has no arrays of some leaf's dtype.
        """
        packed = [leaf for leaf in leaves if not self._is_lent(leaf)]
        if packed:
            shape, dtype = _carrier(size_bytes)
            prepare(packed, *shape, dtype, self.jax_device)

    def arrays(self, memory: Memory, leaves: Sequence[Leaf], ready: Fence, token: object) -> list[jax.Array]:
        """Return the leaves as arrays on the device. Does not wait.

        Args:
            memory: The bytes of the batch, packed.
            leaves: Where what lies.
            ready: When the bytes are there.
            token: Held until XLA reads the memory no more.
        """
        packed = [leaf for leaf in leaves if not self._is_lent(leaf)]
        unpacked: Iterator[jax.Array] = iter(())
        if packed:
            carrier = self._take(memory, *_carrier(memory.size_bytes), ready, token)
            unpacked = iter(unpack(carrier, packed))
        return [
            self._take(memory.slice(leaf.offset_bytes, leaf.size_bytes), leaf.shape, leaf.dtype, ready, token)
            if self._is_lent(leaf)
            else next(unpacked)
            for leaf in leaves
        ]

    def _is_lent(self, leaf: Leaf) -> bool:
        return self._zero_copy and leaf.size_bytes > 0 and arrival(leaf.dtype, leaf.label).as_is

    def _take(
        self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], ready: Fence, token: object
    ) -> jax.Array:
        holder = _jax_imports.Holder(memory, token)
        self._imports.watch(holder, device=self.device.index, address=memory.address)
        return _jax_imports.import_memory(self.device, memory, shape, dtype, ready, holder)


def _carrier(size_bytes: int) -> tuple[tuple[int], np.dtype[Any]]:
    """Return shape and dtype that packed bytes are imported with: words where they can, which XLA moves faster."""
    dtype = np.dtype(np.uint8 if size_bytes % 4 else np.uint32)
    return (size_bytes // dtype.itemsize,), dtype


@final
class DeviceReceiver:
    """Batches in the device sides of slots.

    One copy takes the packed batch to the device; JAX takes the bytes over in stream order; one compiled function makes
    all the leaves of them, in XLA's own memory. So they may be kept and donated, and the slot comes back as soon as
    that function has run. With `zero_copy` a leaf is its part of the slot, which then stays lent as long as the array
    lives; leaves that JAX cannot take as they are (bfloat16, float8, 64-bit types that are narrowed) are unpacked. Such
    a leaf may be donated too: XLA then writes the result into the slot, which stays lent as long as the result lives.

    Source: measured with jax 0.11.2 on one H200: the result of a donated import has the import's address, and holds its
        owner. An import takes the host about 0.07 ms, the function for 20 leaves 0.4 ms: with many small leaves
        `zero_copy` costs the host more than it saves the device.

    Args:
        side: The device.
        stream: Its stream for copies.
    """

    mirrored = True

    def __init__(self, side: Side, stream: Timeline) -> None:
        self._side = side
        self._stream = stream

    def carry(self, slot: SlotMemory, leaves: Sequence[Leaf], size_bytes: int, parts: Sequence[Part] = ()) -> Carried:
        """As in `Receiver`."""
        self._side.prepare(leaves, size_bytes)
        device, target = self._side.device, slot.device.slice(0, size_bytes)
        if not parts:
            device.copy(target, slot.staging.slice(0, size_bytes), self._stream)
        for part in parts:
            device.copy(target.slice(part.offset_bytes, part.memory.size_bytes), part.memory, self._stream)
        ready = device.record(self._stream)
        return Carried(leaves, ready, ready, target)

    def hand_over(self, carried: Carried, token: object) -> list[Any]:
        """As in `Receiver`."""
        return list(self._side.arrays(carried.held, carried.leaves, carried.ready, token))

    def close(self) -> None:
        """As in `Receiver`: nothing is kept."""
