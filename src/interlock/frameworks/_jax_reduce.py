"""Outputs made smaller by JAX, dispatched behind what makes them, before they are drained."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from interlock.frameworks._numpy_reduce import quantize_with


def cast(value: jax.Array, dtype: str) -> jax.Array:
    """Return `value` with another element type; raises TypeError if JAX would narrow that."""
    canonical = jax.dtypes.canonicalize_dtype(dtype).name
    if canonical != dtype:
        raise TypeError(f"without jax_enable_x64 JAX makes it {canonical}")
    return value.astype(dtype)


def top_k(value: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the `count` largest of the last axis, largest first, and where they are, int32."""
    values, indices = jax.lax.top_k(value, count)
    return values, indices.astype(jnp.int32)


def argmax(value: jax.Array, dtype: str) -> jax.Array:
    """Return where the largest of the last axis is."""
    return cast(jnp.argmax(value, axis=-1), dtype)


def quantize(value: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return codes of the last axis, and for each vector of it the scale and, for uint8, the zero, float32."""
    codes, scale, zero = quantize_with(jnp, value.astype(jnp.float32), dtype)
    return codes, scale, zero
