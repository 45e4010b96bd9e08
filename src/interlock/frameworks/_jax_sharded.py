"""Batches to global JAX arrays: each shard goes straight to its own device."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from interlock._core._fence import Fence
from interlock._core._handover import Carried
from interlock.errors import UsageError
from interlock.frameworks._jax_imports import Holder
from interlock.frameworks._jax_shards import plan_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from interlock._core._fence import Timeline
    from interlock._core._handover import Leaf, Part
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Memory
    from interlock.frameworks._jax_receiver import Side
    from interlock.frameworks._jax_shards import Plan, Portion


@final
@dataclass(slots=True)
class _Areas:
    """What a slot has beside its own memory: a packed area per device, and one on the host for what is gathered."""

    packed: list[Memory]
    gathered: Memory | None


@final
class ShardedReceiver:
    """Batches for several CUDA devices, each with a packed area per slot.

    Shards that lie in one piece in the slot are copied from it straight to their device, or to several where an axis
    of the mesh is not named. The others are gathered on the host first, each once, in a second area of the slot.
    Neither kind of area counts in the feed's budget, which bounds the number of slots and so theirs.

    Args:
        sharding: How batches are split. Of a `NamedSharding`'s spec a leaf uses as many entries as it has axes.
        sides: The devices.
    """

    mirrored = False

    def __init__(self, sharding: jax.sharding.Sharding, sides: Sequence[Side]) -> None:
        self._sharding = sharding
        self._sides = tuple(sides)
        self._devices = tuple(side.jax_device for side in sides)
        self._streams: list[Timeline] = [side.device.stream("feed") for side in sides]
        self._areas: weakref.WeakKeyDictionary[SlotMemory, _Areas] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def carry(
        self,
        slot: SlotMemory,
        leaves: Sequence[Leaf],
        size_bytes: int,  # noqa: ARG002 - part of the protocol
        parts: Sequence[Part] = (),
    ) -> Carried:
        """As in `Receiver`.

        Raises:
            UsageError: A leaf cannot be split as the sharding says, has a dtype that JAX lacks, or is on a device.
        """
        _refuse_parts(parts)
        plan = plan_for(self._sharding, self._devices, tuple(leaves))
        for side, portion in zip(self._sides, plan.portions, strict=True):
            side.prepare(portion.leaves, portion.size_bytes)
        areas = self._areas_of(slot, plan)
        if areas.gathered is not None:
            _gather(plan, leaves, slot.staging, areas.gathered)
        ready = [self._send(number, portion, plan, slot.staging, areas) for number, portion in enumerate(plan.portions)]
        everywhere = Fence.EMPTY.join(*ready)
        return Carried(leaves, everywhere, everywhere, (plan, areas, ready))

    def hand_over(self, carried: Carried, token: object) -> list[Any]:
        """As in `Receiver`."""
        plan, areas, ready = carried.held
        shards = [
            side.arrays(memory.slice(0, portion.size_bytes), portion.leaves, fence, token)
            for side, portion, memory, fence in zip(self._sides, plan.portions, areas.packed, ready, strict=True)
        ]
        return _joined(plan, carried.leaves, shards)

    def close(self) -> None:
        """As in `Receiver`."""
        with self._lock:
            self._areas.clear()

    def _areas_of(self, slot: SlotMemory, plan: Plan) -> _Areas:
        with self._lock:
            known = self._areas.get(slot)
            if known is None:
                known = self._areas[slot] = _Areas([], None)
            for number, (side, portion) in enumerate(zip(self._sides, plan.portions, strict=True)):
                if number == len(known.packed):
                    known.packed.append(side.device.allocate(portion.size_bytes))
                elif known.packed[number].size_bytes < portion.size_bytes:
                    known.packed[number] = side.device.allocate(portion.size_bytes)
            if plan.gathered and (known.gathered is None or known.gathered.size_bytes < plan.gathered_bytes):
                known.gathered = self._sides[0].device.allocate_host(max(plan.gathered_bytes, 1))
            return _Areas(list(known.packed), known.gathered)

    def _send(self, number: int, portion: Portion, plan: Plan, staging: Memory, areas: _Areas) -> Fence:
        """Queue the copies of one device's shards; return when they have landed."""
        device, stream = self._sides[number].device, self._streams[number]
        for shard, leaf in zip(portion.shards, portion.leaves, strict=True):
            if shard.size_bytes == 0:
                continue
            source, start_bytes = staging, shard.start_bytes
            if start_bytes < 0 and areas.gathered is not None:
                source, start_bytes = areas.gathered, plan.gathered[shard]
            target = areas.packed[number].slice(leaf.offset_bytes, shard.size_bytes)
            device.copy(target, source.slice(start_bytes, shard.size_bytes), stream)
        fence: Fence = device.record(stream)
        return fence


@final
class HostShardedReceiver:
    """The same for CPU devices. Shards are lent as parts of the slot; XLA copies those that are not the first device's.

    Args:
        sharding: As in `ShardedReceiver`.
        devices: The devices, as JAX knows them.
        lend: Returns an array over host memory, on the first CPU device.
    """

    mirrored = False

    def __init__(
        self,
        sharding: jax.sharding.Sharding,
        devices: Sequence[Any],
        lend: Callable[[npt.NDArray[Any]], jax.Array],
    ) -> None:
        self._sharding = sharding
        self._devices = tuple(devices)
        self._lend = lend

    def carry(self, slot: SlotMemory, leaves: Sequence[Leaf], size_bytes: int, parts: Sequence[Part] = ()) -> Carried:
        """As in `Receiver`: nothing need travel.

        Raises:
            UsageError: A leaf cannot be split as the sharding says, or is on a device.
        """
        _refuse_parts(parts)
        plan = plan_for(self._sharding, self._devices, tuple(leaves))
        return Carried(leaves, Fence.EMPTY, Fence.EMPTY, (plan, slot.staging.slice(0, size_bytes)))

    def hand_over(self, carried: Carried, token: object) -> list[Any]:
        """As in `Receiver`. Copies: shards that are not in one piece in the slot."""
        plan, memory = carried.held
        whole = np.asarray(Holder(memory, token))
        views = [_view(whole, leaf) for leaf in carried.leaves]
        lent: dict[object, jax.Array] = {}  # devices that have the same shard share its loan
        for shard in (shard for portion in plan.portions for shard in portion.shards):
            if shard not in lent:
                part = shard.of(views[shard.position])
                lent[shard] = self._lend(np.ascontiguousarray(part).reshape(shard.shape))
        shards = [
            [_placed(lent[shard], device) for shard in portion.shards]
            for portion, device in zip(plan.portions, self._devices, strict=True)
        ]
        return _joined(plan, carried.leaves, shards)

    def close(self) -> None:
        """As in `Receiver`: nothing is kept."""


def _refuse_parts(parts: Sequence[Part]) -> None:
    if parts:
        raise UsageError(
            "arrays that are on a device cannot be split over several",
            hint="give host arrays, or use jax.device_put with the sharding",
        )


def _gather(plan: Plan, leaves: Sequence[Leaf], staging: Memory, area: Memory) -> None:
    whole, target = np.frombuffer(staging.view(), np.uint8), area.view()
    for shard, offset in plan.gathered.items():
        leaf = leaves[shard.position]
        part = np.ndarray(shard.shape, leaf.dtype, buffer=target, offset=offset)
        np.copyto(part, shard.of(_view(whole, leaf)))


def _view(whole: npt.NDArray[np.uint8], leaf: Leaf) -> npt.NDArray[Any]:
    part = whole[leaf.offset_bytes : leaf.offset_bytes + leaf.size_bytes]
    view: npt.NDArray[Any] = part.view(leaf.dtype).reshape(leaf.shape)
    return view


def _placed(array: jax.Array, device: Any) -> jax.Array:
    return array if array.device == device else jax.device_put(array, device)


def _joined(plan: Plan, leaves: Sequence[Leaf], shards: Sequence[Sequence[jax.Array]]) -> list[Any]:
    """Make one global array of each leaf's shards, which are given by device."""
    make: Any = jax.make_array_from_single_device_arrays
    return [
        make(leaf.shape, sharding, [of_device[position] for of_device in shards])
        for position, (leaf, sharding) in enumerate(zip(leaves, plan.shardings, strict=True))
    ]
