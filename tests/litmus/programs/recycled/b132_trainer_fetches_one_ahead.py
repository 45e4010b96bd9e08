"""A trainer fetches the next batch before it uses the current one, whose memory the loader reuses.

NVIDIA/DALI PR 3239.
"""

from __future__ import annotations

import mmap

import jax
import jax.numpy as jnp
import numpy as np

ENTRY = "B132"
KIND = "recycled"
SCHEDULES = "lazy"


def loader():
    memory = np.frombuffer(mmap.mmap(-1, 1 << 14), np.float32)
    for number in range(3):
        np.multiply(np.ones_like(memory), number, out=memory)  # <- second
        yield memory


def adapter(*, copy):
    for memory in loader():
        yield jnp.array(memory) if copy else jax.device_put(memory)  # <- first


def one_ahead(batches):
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def buggy():
    return [float(batch.max()) for batch in one_ahead(adapter(copy=False))]


def fixed():
    return [float(batch.max()) for batch in one_ahead(adapter(copy=True))]
