"""Which part of a batch goes to which device: arithmetic on shapes and shardings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import jax

from interlock._core._handover import Leaf
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

_ALIGNMENT_BYTES = 128
"""As in the slots of a feed."""


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a leaf, which one device has or several.

    Attributes:
        position: Which leaf.
        bounds: Which part of it: start and stop on each axis.
        shape: Shape of the part.
        size_bytes: Its bytes.
        start_bytes: Where they begin in the slot; -1 if they are not in one piece there.
    """

    position: int
    bounds: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    size_bytes: int
    start_bytes: int

    def of(self, leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the part of `leaf`, as a view."""
        part: npt.NDArray[Any] = leaf[tuple(slice(start, stop) for start, stop in self.bounds)]
        return part


@final
@dataclass(frozen=True, slots=True)
class Portion:
    """What one device gets of a batch.

    Attributes:
        shards: Of each leaf one.
        leaves: The same as leaves of a slot of its own, packed.
        size_bytes: Bytes of that slot.
    """

    shards: tuple[Shard, ...]
    leaves: tuple[Leaf, ...]
    size_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """How a batch is split.

    Attributes:
        shardings: The sharding of each leaf.
        portions: One per device, in the order of the devices.
        gathered: Shards that are not in one piece in the slot, each once, and where they go in an area of their own.
        gathered_bytes: Bytes of that area.
    """

    shardings: tuple[jax.sharding.Sharding, ...]
    portions: tuple[Portion, ...]
    gathered: Mapping[Shard, int]
    gathered_bytes: int


@lru_cache(maxsize=64)
def plan_for(sharding: jax.sharding.Sharding, devices: tuple[Any, ...], leaves: tuple[Leaf, ...]) -> Plan:
    """Return how a batch of `leaves` is split over `devices`.

    Raises:
        UsageError: A leaf cannot be split as the sharding says.
    """
    shardings = tuple(_sharding_of(sharding, leaf) for leaf in leaves)
    indices = [one.devices_indices_map(leaf.shape) for one, leaf in zip(shardings, leaves, strict=True)]
    portions = tuple(
        _portion([_shard(position, leaf, indices[position][device]) for position, leaf in enumerate(leaves)], leaves)
        for device in devices
    )
    gathered: dict[Shard, int] = {}
    size_bytes = 0
    for shard in (shard for portion in portions for shard in portion.shards):
        if shard.start_bytes < 0 and shard not in gathered:
            gathered[shard] = size_bytes
            size_bytes += _padded(shard.size_bytes)
    return Plan(shardings, portions, gathered, size_bytes)


def _sharding_of(sharding: Any, leaf: Leaf) -> jax.sharding.Sharding:
    """Return the sharding of one leaf: of a `NamedSharding`'s spec the axes that the leaf has."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = tuple(sharding.spec)[: len(leaf.shape)]
        for axis, names in enumerate(spec):
            _refuse_uneven(leaf, axis, names, sharding.mesh.shape)
        partition: Any = jax.sharding.PartitionSpec  # JAX gives it no types
        sharding = jax.sharding.NamedSharding(sharding.mesh, partition(*spec))
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError as error:
        raise UsageError(
            f"{leaf.label} of shape {leaf.shape} cannot be split so",
            why=str(error),
            hint="give a NamedSharding, whose spec is cut to the axes that a leaf has",
        ) from error
    found: jax.sharding.Sharding = sharding
    return found


def _refuse_uneven(leaf: Leaf, axis: int, names: Any, sizes: Mapping[str, int]) -> None:
    named = (names,) if isinstance(names, str) else names
    if not isinstance(named, tuple):  # None: the axis is not split
        return
    count = math.prod(sizes[name] for name in named)
    if leaf.shape[axis] % count == 0:
        return
    raise UsageError(
        f"{leaf.label} has {leaf.shape[axis]} " + ("rows" if axis == 0 else f"elements on axis {axis}"),
        why=f"the mesh splits them by {' and '.join(map(repr, named))} in {count} equal parts",
        hint=f"use drop_last=True or a batch_size that is a multiple of {count}" if axis == 0 else "pad the samples",
    )


def _shard(position: int, leaf: Leaf, index: tuple[slice, ...]) -> Shard:
    bounds = tuple(part.indices(length)[:2] for part, length in zip(index, leaf.shape, strict=True))
    shape = tuple(stop - start for start, stop in bounds)
    split = [axis for axis, length in enumerate(leaf.shape) if shape[axis] != length]
    in_one_piece = all(shape[axis] == 1 for axis in range(max(split, default=0)))
    first = 0
    for (start, _), length in zip(bounds, leaf.shape, strict=True):
        first = first * length + start
    start_bytes = leaf.offset_bytes + first * leaf.dtype.itemsize if in_one_piece else -1
    return Shard(position, bounds, shape, math.prod(shape) * leaf.dtype.itemsize, start_bytes)


def _portion(shards: Sequence[Shard], leaves: Sequence[Leaf]) -> Portion:
    packed: list[Leaf] = []
    offset = 0
    for shard, leaf in zip(shards, leaves, strict=True):
        packed.append(Leaf(leaf.name, shard.shape, leaf.dtype, offset))
        offset += _padded(shard.size_bytes)
    return Portion(tuple(shards), tuple(packed), max(offset, _ALIGNMENT_BYTES))


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
