"""CUDA tensors for the drain: a snapshot by torch itself, on the stream that is current at `put`."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from interlock._core._protocols import DeviceArray
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from interlock._core._protocols import Device

_NARROW = frozenset(
    getattr(torch, name)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    if hasattr(torch, name)
)


def device_array(value: torch.Tensor, *, borrow: bool, open_device: Callable[[str], Device]) -> DeviceArray | None:
    """Return the value that a CUDA tensor has at this point of its device's current stream; None for other tensors.

    The snapshot lives in torch's own allocator and is held until it has been copied away: so no other stream need be
    recorded on it, and memory statistics and the handling of a full device stay as users know them.

    Ordering:
        The snapshot is queued on the current stream of the tensor's device, as any operation would be. A tensor that
        another stream makes must be put inside `with torch.cuda.stream(...)`, or behind a wait for that stream.

    Copies: once on the device; with `borrow` only what is not contiguous.

    Raises:
        UsageError: The tensor is no plain array, or a CUDA graph is being captured.
        DeviceError: The device has no memory for the snapshot.
    """
    if not value.is_cuda:
        return None
    dtype = _check(value)
    held = _held(value, borrow=borrow)
    index = held.device.index
    device: Any = open_device(f"cuda:{index}")  # a `StreamDevice`, as every device of that name is
    stream = device.adopt(torch.cuda.current_stream(index).cuda_stream)
    memory = device.wrap(held.data_ptr(), held.numel() * held.element_size(), held)
    return DeviceArray(device, memory, tuple(held.shape), dtype, device.record(stream), stable=True)


def _check(value: torch.Tensor) -> str:
    """Return NumPy's name for the dtype of a tensor that can be drained."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "rows cannot be put while a CUDA graph is captured",
            why="their values do not exist before the graph is replayed",
            hint="put the graph's outputs after each replay",
        )
    if hasattr(value, "to_local"):
        raise UsageError("a distributed tensor cannot be drained whole", hint="put what its .to_local() returns")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        kind = "quantized" if value.is_quantized else "nested" if value.is_nested else f"of layout {value.layout}"
        raise UsageError(
            f"a tensor that is {kind} cannot be drained",
            why="rows are plain arrays",
            hint="convert it first, as with .to_dense() or .dequantize()",
        )
    try:
        return narrow_dtype(value.dtype).name
    except TypeError as error:
        raise UsageError(
            f"a tensor of {value.dtype} has no NumPy form", why=str(error), hint="cast it first, as with .float()"
        ) from error


def narrow_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype of NumPy, or of `ml_dtypes`, that has the same name as torch's.

    Raises:
        TypeError: There is none.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8_"):
        with suppress(ModuleNotFoundError):  # importing it makes the names known to NumPy
            importlib.import_module("ml_dtypes")
    return np.dtype(name)


def host_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a CPU tensor as an array over the same memory; bfloat16 and float8 as `ml_dtypes` has them.

    Raises:
        TypeError: NumPy has no such dtype.
        RuntimeError: It has no such form.
    """
    if tensor.dtype in _NARROW:
        whole = tensor.resolve_neg().contiguous().view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        return whole.numpy().view(narrow_dtype(tensor.dtype))
    try:
        array: npt.NDArray[Any] = tensor.numpy()
    except RuntimeError:  # a view that is conjugated or negated when it is read, which is not asked for each time
        array = tensor.resolve_conj().resolve_neg().numpy()
    return array


def jagged(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return values and offsets of a nested tensor, where they lie; None for other tensors.

    Copies: only of one with holes between its rows.

    Raises:
        UsageError: It is not of the jagged layout, or its ragged dimension is not the first of each row.
    """
    if not value.is_nested:
        return None
    if value.layout is not torch.jagged:
        raise UsageError(
            f"a nested tensor of layout {value.layout} cannot be drained",
            hint="make it with layout=torch.jagged, or put interlock.drain.Ragged(list(tensor.unbind()))",
        )
    tensor: Any = value.detach().contiguous()
    offsets: torch.Tensor = tensor.offsets()
    rows = tensor.values()
    if tensor.shape[0] != len(offsets) - 1 or tuple(tensor.shape[2:]) != tuple(rows.shape[1:]):
        raise UsageError(
            "a nested tensor that is transposed cannot be drained",
            why=f"the ragged dimension of its shape {tuple(tensor.shape)} is not the second",
            hint="transpose it back",
        )
    return rows, offsets


def _held(value: torch.Tensor, *, borrow: bool) -> torch.Tensor:
    """Return what the drain reads: contiguous, and a copy of its own unless it is borrowed."""
    tensor = value.detach()
    try:
        plain = tensor.resolve_conj().resolve_neg()
        is_ours = plain.data_ptr() != tensor.data_ptr()
        if (borrow or is_ours) and plain.is_contiguous():
            return plain
        return plain.clone(memory_format=torch.contiguous_format)
    except torch.cuda.OutOfMemoryError as error:
        size_bytes = tensor.numel() * tensor.element_size()
        raise DeviceError(
            f"{tensor.device} has no memory for the snapshot of {size_bytes:,} bytes that a put takes",
            why=str(error).partition(". ")[0],
            hint="lower the drain's budget_bytes, put fewer rows at once, or use borrow=True",
        ) from error
