"""CuPy arrays for the drain: a snapshot by CuPy itself, on the stream that is current at `put`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

from interlock._core._protocols import DeviceArray
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._protocols import Device

_PREDEFINED_STREAMS = 2
"""Handles up to this are default streams, which are never captured."""


def device_array(value: Any, *, borrow: bool, open_device: Callable[[str], Device]) -> DeviceArray:
    """Return the value that an array has at this point of its device's current stream.

    The snapshot lives in CuPy's own memory pool. The pool gives memory away as soon as an array is dropped, so the
    drain holds what it reads until it has been copied away.

    Ordering:
        The snapshot is queued on the current stream of the array's device, as any operation would be.

    Copies: once on the device; with `borrow` only what is not contiguous.

    Raises:
        UsageError: A CUDA graph is being captured.
        DeviceError: The device has no memory for the snapshot.
    """
    index = int(value.device.id)
    with cupy.cuda.Device(index):
        stream = cupy.cuda.get_current_stream()
        if stream.ptr > _PREDEFINED_STREAMS and stream.is_capturing():
            raise UsageError(
                "rows cannot be put while a CUDA graph is captured",
                why="their values do not exist before the graph is replayed",
                hint="put the graph's outputs after each replay",
            )
        held = _held(value, borrow=borrow)
    device: Any = open_device(f"cuda:{index}")  # a `StreamDevice`, as every device of that name is
    memory = device.wrap(int(held.data.ptr), int(held.nbytes), held)
    ready = device.record(device.adopt(int(stream.ptr)))
    return DeviceArray(device, memory, tuple(held.shape), held.dtype.name, ready, stable=True)


def _held(value: Any, *, borrow: bool) -> Any:
    """Return what the drain reads: contiguous, and a copy of its own unless it is borrowed."""
    try:
        return value if borrow and value.flags.c_contiguous else value.copy(order="C")
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise DeviceError(
            f"cuda:{value.device.id} has no memory for the snapshot of {value.nbytes:,} bytes that a put takes",
            why=str(error),
            hint="lower the drain's budget_bytes, put fewer rows at once, or use borrow=True",
        ) from error
