"""Outputs made smaller by CuPy, on the current stream of their device, before they are drained."""

from __future__ import annotations

from typing import Any

import cupy

from interlock.frameworks._numpy_reduce import quantize_with, top_k_with


def cast(value: Any, dtype: str) -> Any:
    """Return `value` with another element type; raises TypeError if CuPy has none of that name."""
    with cupy.cuda.Device(value.device.id):
        return value.astype(cupy.dtype(dtype))


def top_k(value: Any, count: int) -> tuple[Any, Any]:
    """Return the `count` largest of the last axis, largest first, and where they are, int32."""
    with cupy.cuda.Device(value.device.id):
        return top_k_with(cupy, value, count)


def argmax(value: Any, dtype: str) -> Any:
    """Return where the largest of the last axis is."""
    with cupy.cuda.Device(value.device.id):
        return value.argmax(axis=-1).astype(cupy.dtype(dtype))


def quantize(value: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Return codes of the last axis, and for each vector of it the scale and, for uint8, the zero, float32."""
    with cupy.cuda.Device(value.device.id):
        return quantize_with(cupy, value.astype(cupy.float32), dtype)
