"""An operation on an imported array is queued, and NumPy changes the array at once.

apache/mxnet PR 14733: any engine that runs later shows it, on a CPU too.
"""

from __future__ import annotations

import mmap

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B041"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def page(rows):
    return np.frombuffer(mmap.mmap(-1, rows * rows * 4), np.float32).reshape(rows, rows)


def buggy():
    product = jax.jit(lambda left: jnp.tanh(left @ left).sum())
    matrix = page(128)
    matrix[:] = 0.01
    total = product(matrix)  # <- first
    matrix[:] = 0  # <- second
    return float(total)


def fixed():
    product = jax.jit(lambda left: jnp.tanh(left @ left).sum())
    matrix = page(128)
    matrix[:] = 0.01
    total = float(product(matrix))
    matrix[:] = 0
    return total
