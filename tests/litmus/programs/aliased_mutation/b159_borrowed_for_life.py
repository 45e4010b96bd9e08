"""A buffer is taken to be free once the transfer is done, but it is borrowed for the life of the array.

pytorch/xla PR 3833: the two promises are alike on some platforms, and on the CPU they are not.
"""

from __future__ import annotations

import mmap

import jax
import numpy as np

ENTRY = "B159"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def staging():
    return np.frombuffer(mmap.mmap(-1, 1 << 15), np.float32)


def buggy():
    buffer = staging()
    buffer.fill(1)
    array = jax.device_put(buffer).block_until_ready()  # <- first
    buffer.fill(2)  # <- second
    return float(array.mean())


def fixed():
    buffer = staging()
    buffer.fill(1)
    mean = float(jax.device_put(buffer).mean())
    buffer.fill(2)
    return mean
