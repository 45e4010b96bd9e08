"""Arrays of a loader that need no host copy: those on a device, and tensors in pinned memory."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import DeviceArray, Pieces
from interlock.devices import open_device
from interlock.errors import UsageError
from interlock.frameworks import framework_of

if TYPE_CHECKING:
    from interlock._core._protocols import Memory
    from interlock.frameworks._own_memory import DriverDevice

_LEGACY_STREAM = 1
"""CUDA's default stream: who says nothing of streams works on it, or has waited."""
_DALI = "nvidia.dali."


@final
@dataclass(frozen=True, slots=True)
class Arrival:
    """An array that its device copies from where it is.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        memory: Its bytes, C-contiguous; None if it has none.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    memory: Memory | None


def unlisted(value: Any) -> Any:
    """Return a list of tensors of DALI as one array, anything else as it is.

    Raises:
        UsageError: The tensors in it differ in shape.
    """
    kind = type(value)
    if not kind.__module__.startswith(_DALI) or not hasattr(value, "is_dense_tensor"):
        return value
    if not value.is_dense_tensor():
        raise UsageError("a batch of DALI holds tensors of different shapes", hint="pad or crop them in the pipeline")
    tensor = value.as_tensor()
    return tensor if hasattr(tensor, "__cuda_array_interface__") else value.as_array()


def arrival(value: Any, label: str, device: DriverDevice) -> Arrival | None:
    """Return how `device` gets an array by itself, or None if the host must copy it.

    Args:
        value: A leaf of a batch.
        label: What messages call it.
        device: Where batches go.

    Ordering:
        What is queued on the device's copy stream from now on comes after the array's value: after the calling thread's
        current stream of its framework, or the stream that its CUDA array interface names.

    Copies: on its device, an array that is not contiguous.

    Raises:
        UsageError: The array cannot be taken.
    """
    framework = framework_of(value)
    take = getattr(framework, "device_arrays", None)
    if take is not None:
        _know_dtype(value, label)
        found: DeviceArray | Pieces | None
        try:
            found = take(value, borrow=True, open_device=open_device)
        except UsageError as error:
            raise UsageError(f"{label} cannot be prefetched", why=error.what, hint=error.hint) from error
        if isinstance(found, Pieces):
            raise UsageError(f"{label} has shards on several devices", hint="prefetch arrays of one device")
        return _pinned(value, device) if found is None else _ordered(found, device)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else _from_interface(value, interface, label, device)


def _know_dtype(value: Any, label: str) -> None:
    """Let NumPy know the small floats."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if not name.startswith(("bfloat", "float8")):
        return
    try:
        importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise UsageError(
            f"{label} has dtype {name}",
            why="NumPy knows it only with the package ml_dtypes",
            hint="pip install ml_dtypes, or cast it in the loader",
        ) from error


def _ordered(found: DeviceArray, device: DriverDevice) -> Arrival:
    device.wait(device.stream("feed"), found.ready)
    return Arrival(found.shape, np.dtype(found.dtype), found.memory if math.prod(found.shape) else None)


def _pinned(value: Any, device: DriverDevice) -> Arrival | None:
    """Take a torch tensor in memory that copy engines reach."""
    if not hasattr(value, "is_pinned") or not value.numel() or not value.is_contiguous() or not value.is_pinned():
        return None
    tensor = value.detach()
    memory = device.wrap(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)
    return Arrival(tuple(tensor.shape), np.dtype(str(tensor.dtype).removeprefix("torch.")), memory)


def _from_interface(value: Any, interface: dict[str, Any], label: str, device: DriverDevice) -> Arrival:
    """Take an array of a library that is no framework here, as DALI's tensors.

    Source: Numba's CUDA array interface, version 3; DLPack's `__dlpack__(stream=...)`.
    """
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    size_bytes = math.prod(shape) * dtype.itemsize
    if not size_bytes:
        return Arrival(shape, dtype, None)
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != _packed_strides(shape, dtype):
        raise UsageError(f"{label} is not contiguous in its device's memory", hint="make it so in the loader")
    copying = device.stream("feed")
    if hasattr(value, "__dlpack__"):
        value.__dlpack__(stream=device.handle(copying))  # who made it orders our stream behind its own
    elif (handle := interface.get("stream", _LEGACY_STREAM)) is not None:
        device.wait(copying, device.record(device.adopt(handle)))
    return Arrival(shape, dtype, device.wrap(interface["data"][0], size_bytes, value))


def _packed_strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    strides, step = [], dtype.itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
