"""Examples call a private accessor that skips the defensive copy; the array is normalised in place.

tensorflow/tensorflow#45964.
"""

from __future__ import annotations

import mmap

import jax.numpy as jnp
import numpy as np

ENTRY = "B155"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


class Element:
    def __init__(self):
        self._memory = np.frombuffer(mmap.mmap(-1, 1 << 14), np.float32)
        self._memory[:] = np.linspace(0, 1, len(self._memory))
        self.tensor = jnp.from_dlpack(self._memory)  # <- first

    def numpy(self):
        return np.array(self._memory)

    def _numpy(self):
        return self._memory


def normalise(image):
    image -= image.mean()  # <- second
    return image


def buggy():
    element = Element()
    normalise(element._numpy())
    return float(element.tensor.mean())


def fixed():
    element = Element()
    normalise(element.numpy())
    return float(element.tensor.mean())
