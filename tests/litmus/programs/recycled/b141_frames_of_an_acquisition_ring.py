"""Frames are views of an acquisition ring; the "superfluous" copy was optimised away.

genicam/harvesters#450: the content changes once the ring has gone round.
"""

from __future__ import annotations

import mmap
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B141"
KIND = "recycled"
SCHEDULES = "lazy"

RING, KEPT = 2, 3


class Camera:
    def __init__(self):
        self.ring = np.frombuffer(mmap.mmap(-1, RING * 4096), np.float32).reshape(RING, -1)
        self.count = 0

    def grab(self):
        frame = self.ring[self.count % RING]
        frame[:] = self.count  # <- second
        self.count += 1
        return frame


def buggy():
    camera, window = Camera(), deque[jax.Array](maxlen=KEPT)
    for _ in range(4):
        window.append(jnp.from_dlpack(camera.grab()))  # <- first
    return [float(frame[0]) for frame in window]


def fixed():
    camera, window = Camera(), deque[jax.Array](maxlen=KEPT)
    for _ in range(4):
        window.append(jnp.from_dlpack(camera.grab().copy()))
    return [float(frame[0]) for frame in window]
