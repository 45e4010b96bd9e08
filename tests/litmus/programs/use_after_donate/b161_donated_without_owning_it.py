"""An array that shares memory with NumPy is donated; the computation writes into the user's array.

jax-ml/jax commit ce9e009: donation of what is not owned is refused since.
"""

from __future__ import annotations

import mmap

import jax
import numpy as np

ENTRY = "B161"
KIND = "use-after-donate"
SCHEDULES = "lazy"


def step():
    return jax.jit(lambda state: state * 2, donate_argnums=0)


def buggy():
    host = np.frombuffer(mmap.mmap(-1, 1 << 14), np.float32)
    host.fill(1)
    after = step()(jax.device_put(host))  # <- first
    host.fill(3)  # <- second
    return float(after.mean())


def fixed():
    host = np.frombuffer(mmap.mmap(-1, 1 << 14), np.float32)
    host.fill(1)
    after = step()(jax.device_put(host.copy()))
    host.fill(3)
    return float(after.mean())
