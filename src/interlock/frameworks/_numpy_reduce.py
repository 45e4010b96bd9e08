"""Outputs made smaller by NumPy, or by what has its functions, before they are drained."""

from __future__ import annotations

from typing import Any

import numpy as np


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
    return value if value.dtype.isbuiltin == 1 else value.astype(xp.float32)
