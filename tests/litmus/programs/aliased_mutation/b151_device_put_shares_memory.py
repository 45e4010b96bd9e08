"""`device_put` shares the memory of a large array, so a later change shows in the immutable copy.

jax-ml/jax#37830: small arrays are copied, so toy tests pass.
"""

from __future__ import annotations

import mmap

import jax
import numpy as np

ENTRY = "B151"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def table():
    return np.frombuffer(mmap.mmap(-1, 1 << 16), np.int32)


def buggy():
    host = table()
    before = jax.device_put(host)  # <- first
    host += 1  # <- second
    return int(before.sum())


def fixed():
    host = table()
    before = jax.device_put(host.copy())
    host += 1
    return int(before.sum())
