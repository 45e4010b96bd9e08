"""What was meant as a copy is a view of an array that is donated next.

jax-ml/jax#3412.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B162"
KIND = "use-after-donate"
SCHEDULES = "lazy"


def run(keep):
    step = jax.jit(lambda state: state + 1, donate_argnums=0)
    state = jnp.ones(4096)
    kept = keep(state)
    after = step(state)  # <- first
    return float(after.sum()), float(np.sum(kept))  # <- second


def buggy():
    return run(np.asarray)


def fixed():
    return run(np.array)
