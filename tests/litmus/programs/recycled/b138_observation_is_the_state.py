"""An observation is a view of the simulator's state and changes when the simulator steps.

google-deepmind/dm_control#34.
"""

from __future__ import annotations

import mmap

import jax.numpy as jnp
import numpy as np

ENTRY = "B138"
KIND = "recycled"
SCHEDULES = "lazy"


class Physics:
    def __init__(self):
        self.state = np.frombuffer(mmap.mmap(-1, 4096), np.float32).reshape(2, -1)

    def observe(self):
        return self.state[0]

    def step(self):
        self.state[0] += 1  # <- second
        self.state[1] -= 1


def buggy():
    physics = Physics()
    start = jnp.from_dlpack(physics.observe())  # <- first
    physics.step()
    return float((jnp.array(physics.observe()) - start).sum())


def fixed():
    physics = Physics()
    start = jnp.array(physics.observe())
    physics.step()
    return float((jnp.array(physics.observe()) - start).sum())
