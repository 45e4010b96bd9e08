"""Objects of a shared store lost their read-only flag; one reader writes and all others see it.

ray-project/ray#7174.
"""

from __future__ import annotations

import mmap

import jax
import numpy as np

ENTRY = "B156"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


class Store:
    def __init__(self, *, read_only):
        self.memory, self.read_only = np.frombuffer(mmap.mmap(-1, 4096), np.float32), read_only

    def get(self):
        view = self.memory.view()
        view.flags.writeable = not self.read_only
        return view


def two_readers(store):
    left, right = jax.device_put(store.get()), store.get()  # <- first
    try:
        right[0] = 7  # <- second
    except ValueError:
        return "refused"
    return float(left[0])


def buggy():
    return two_readers(Store(read_only=False))


def fixed():
    return two_readers(Store(read_only=True))
