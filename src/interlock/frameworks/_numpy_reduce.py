"""Outputs made smaller by NumPy, or by what has its functions, before they are drained."""

from __future__ import annotations

from typing import Any

import numpy as np

CODES = {"int8": (-127, 127), "uint8": (0, 255)}
"""The smallest and the largest code."""

SMALLEST_SCALE = 2.0**-126
"""Below it float32 loses bits, and some devices take it for 0: so everything does."""


_FROM_OUTSIDE = 2
"""What `isbuiltin` is of element types that others have added to NumPy; 0 is another byte order."""


def cast(value: Any, dtype: str) -> Any:
    """Return `value` with another element type; what is too large for it becomes infinite or wraps, as ever."""
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(np.dtype(dtype))


def top_k(value: Any, count: int) -> tuple[Any, Any]:
    """Return the `count` largest of the last axis, largest first, and where they are, int32."""
    return top_k_with(np, value, count)


def argmax(value: Any, dtype: str) -> Any:
    """Return where the largest of the last axis is."""
    return np.asarray(_comparable(np, value).argmax(axis=-1)).astype(dtype)


def quantize(value: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Return codes of the last axis, and for each vector of it the scale and, for uint8, the zero, float32."""
    with np.errstate(all="ignore"):
        return quantize_with(np, value.astype(np.float32), dtype)


def quantize_with(xp: Any, value: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Return what `quantize` does, by the functions of `xp`: numpy or what has the same. `value` is float32."""
    low, high = value.min(axis=-1, keepdims=True), value.max(axis=-1, keepdims=True)
    zero = xp.zeros_like(low) if dtype == "int8" else low
    scale = xp.maximum(high, -low) / xp.float32(127) if dtype == "int8" else (high - low) / xp.float32(255)
    whole = xp.isfinite(scale)
    scale = xp.where(whole, xp.where(scale < SMALLEST_SCALE, xp.float32(0), scale), xp.float32("nan"))
    has_steps = scale > 0
    steps = xp.rint((value - zero) / xp.where(has_steps, scale, xp.float32(1)))
    codes = xp.where(has_steps, xp.clip(steps, *CODES[dtype]), xp.float32(0)).astype(dtype)
    zero = xp.where(whole, zero, xp.float32("nan"))
    return codes, scale[..., 0], zero[..., 0]


def top_k_with(xp: Any, value: Any, count: int) -> tuple[Any, Any]:
    """Return what `top_k` does, by the functions of `xp`: numpy or what has the same."""
    keys = _comparable(xp, value)
    size = value.shape[-1]
    largest = xp.argpartition(keys, size - count, axis=-1)[..., size - count :]
    order = xp.argsort(xp.take_along_axis(keys, largest, axis=-1), axis=-1)[..., ::-1]
    indices = xp.take_along_axis(largest, order, axis=-1)
    return xp.take_along_axis(value, indices, axis=-1), indices.astype(xp.int32)


def _comparable(xp: Any, value: Any) -> Any:
    """Return values that `xp` can sort: those of `ml_dtypes` as float32, which holds them all."""
    return value.astype(xp.float32) if value.dtype.isbuiltin == _FROM_OUTSIDE else value
