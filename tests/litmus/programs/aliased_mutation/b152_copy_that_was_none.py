"""A helper that promises a copy takes a shortcut that makes none; its source is changed in place.

jax-ml/jax PR 899: `array(copy=True)` did not copy.
"""

from __future__ import annotations

import mmap

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B152"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def copied(source, *, shortcut):
    if shortcut:
        return jax.device_put(source)  # <- first
    return jnp.array(source, copy=True)


def difference(*, shortcut):
    source = np.frombuffer(mmap.mmap(-1, 1 << 14), np.float32)
    kept = copied(source, shortcut=shortcut)
    source[::2] = 5  # <- second
    return float(kept.max())


def buggy():
    return difference(shortcut=True)


def fixed():
    return difference(shortcut=False)
