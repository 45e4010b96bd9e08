"""A checkpoint thread touches arrays that the next training step has donated.

google/orbax#626: the documents promise a copy to the host first.
"""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B164"
KIND = "use-after-donate"
SCHEDULES = "lazy"


def serialise(go, state, saved):
    go.wait()
    try:
        saved.append(np.asarray(state).sum())  # <- second
    except RuntimeError as error:
        saved.append(str(error))


def train(stage):
    step = jax.jit(lambda state: state + 1, donate_argnums=0)
    state, saved, go = jnp.zeros(1024), list[object](), threading.Event()
    writer = threading.Thread(target=serialise, args=(go, stage(state), saved), daemon=True)
    writer.start()
    state = step(state)  # <- first
    go.set()
    writer.join()
    return saved


def buggy():
    return train(lambda state: state)


def fixed():
    return train(np.array)
