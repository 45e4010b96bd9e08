"""A pipeline takes its output buffer back while JAX still reads from it.

NVIDIA/DALI#5617: the only symptom is training curves that are worse, and no one can tell why.
"""

from __future__ import annotations

import mmap

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B129"
KIND = "recycled"
SCHEDULES = "lazy"


def pipeline(steps):
    output = np.frombuffer(mmap.mmap(-1, 1 << 16), np.float32)
    for step in range(steps):
        output.fill(step)  # <- second
        yield output


def buggy():
    train = jax.jit(lambda weights, batch: weights + batch.mean())
    weights = jnp.zeros(())
    for output in pipeline(3):
        batch = jnp.from_dlpack(output)  # <- first
        weights = train(weights, batch)
    return float(weights)


def fixed():
    train = jax.jit(lambda weights, batch: weights + batch.mean())
    weights = jnp.zeros(())
    for output in pipeline(3):
        batch = jnp.array(output, copy=True).block_until_ready()
        weights = train(weights, batch)
    return float(weights)
