"""JAX arrays for the drain: a snapshot by XLA itself, shard by shard, each left on its own device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from interlock._core._protocols import DeviceArray, Piece, Pieces
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._protocols import Device

_CUDA_PLATFORMS = frozenset({"gpu", "cuda"})


def device_arrays(
    value: jax.Array, *, borrow: bool, open_device: Callable[[str], Device]
) -> DeviceArray | Pieces | None:
    """Return what an array in the memory of NVIDIA GPUs holds; None for arrays elsewhere, or without elements.

    Of a sharded array every block is taken once, from one of the devices that hold it.

    Ordering:
        The snapshot is dispatched behind the array's producer, so a later donation does no harm. The drain's stream is
        ordered behind the snapshot; the host does not wait.

    Copies: once on each device; with `borrow` none.

    Raises:
        UsageError: The array has no value to take.
        DeviceError: A device has no memory for the snapshot.

    Source: measured with jax 0.11.2 on one H200: exporting with a stream returns in less than 1 ms while the device is
        busy, and orders that stream behind the producer.
    """
    refuse_valueless(value)
    if not value.size or not _is_on_gpu(value):
        return None
    if len(value.sharding.device_set) == 1:
        return _take(value, borrow=borrow, open_device=open_device)
    first = [shard for shard in value.addressable_shards if shard.replica_id == 0]
    pieces = [
        Piece(_take(shard.data, borrow=borrow, open_device=open_device), tuple(part.start or 0 for part in shard.index))
        for shard in first
    ]
    if len(pieces) == 1:  # the same on every device
        return pieces[0].array
    dtype = np.dtype(value.dtype).name
    return Pieces(tuple(value.shape), dtype, tuple(sorted(pieces, key=lambda piece: piece.first)))


def refuse_valueless(array: jax.Array) -> None:
    """Refuse an array that has no value which can be drained.

    Raises:
        UsageError: It is traced, an array of keys, deleted or donated, or has shards on other hosts.
    """
    if isinstance(array, jax.core.Tracer):
        raise UsageError(
            "an array given to the drain has no value yet",
            why="it is traced inside a jitted function",
            hint="return it from the function and put the result",
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise UsageError(f"an array of {array.dtype} has no NumPy form", hint="put jax.random.key_data of it")
    if array.is_deleted():
        raise UsageError(
            "an array given to the drain was deleted",
            why="it was donated to a jitted function, or .delete() was called",
            hint="put it before it is donated",
        )
    if not array.is_fully_addressable:
        raise UsageError("an array with shards on other hosts cannot be drained", hint="put its addressable shards")


def _is_on_gpu(array: jax.Array) -> bool:
    devices: Any = array.sharding.device_set
    if array.sharding.memory_kind not in {None, "device"}:
        return False  # in host memory, whatever its device
    return all(device.platform in _CUDA_PLATFORMS for device in devices)


def _take(array: Any, *, borrow: bool, open_device: Callable[[str], Device]) -> DeviceArray:
    """Take the value of an array on one device, ordered for the drain's stream there."""
    (where,) = array.sharding.device_set
    device: Any = open_device(f"cuda:{where.local_hardware_id}")  # a `StreamDevice`
    stream = device.stream("drain")
    try:
        held: Any = array if borrow and _is_row_major(array) else jnp.copy(array)
        capsule = held.__dlpack__(stream=device.handle(stream))
        address = held.unsafe_buffer_pointer()
    except RuntimeError as error:  # XLA's own error is one
        raise DeviceError(
            f"{device.name} could not take the snapshot of {array.nbytes:,} bytes that a put needs",
            why=str(error).partition("\n")[0],
            hint="if its memory is full: lower the drain's budget_bytes, put fewer rows, or use borrow=True",
        ) from error
    except BufferError as error:
        raise UsageError(
            f"an array of {array.dtype} cannot leave JAX", why=str(error), hint="cast it first, as with .astype"
        ) from error
    memory = device.wrap(address, held.nbytes, (held, capsule))
    return DeviceArray(device, memory, tuple(held.shape), np.dtype(held.dtype).name, device.record(stream), stable=True)


def _is_row_major(array: jax.Array) -> bool:
    """Tell whether the array lies in memory as NumPy would have it, which XLA's own results do."""
    layout = getattr(getattr(array, "format", None), "layout", None)
    order = getattr(layout, "major_to_minor", None)
    return order is None or tuple(order) == tuple(range(array.ndim))
