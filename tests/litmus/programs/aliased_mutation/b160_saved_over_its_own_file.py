"""Arrays are views of a mapped file, and the file is written while they are alive.

safetensors/safetensors#762 and others: checkpoints look valid until they are used.
"""

from __future__ import annotations

import tempfile

import jax.numpy as jnp
import numpy as np

ENTRY = "B160"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def file(folder):
    mapped = np.memmap(f"{folder}/weights.bin", np.float32, "w+", shape=4096)
    mapped[:] = 1
    return mapped


def buggy():
    with tempfile.TemporaryDirectory() as folder:
        mapped = file(folder)
        weights = jnp.from_dlpack(np.asarray(mapped))  # <- first
        mapped[:] = 0  # <- second
        return float(weights.sum())


def fixed():
    with tempfile.TemporaryDirectory() as folder:
        mapped = file(folder)
        weights = jnp.from_dlpack(np.array(mapped))
        mapped[:] = 0
        return float(weights.sum())
