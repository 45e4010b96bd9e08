"""A torch view of a JAX array, made by DLPack, is written in place: the immutable array changes.

jax-ml/jax#19123: unless the array was printed before, which keeps an old value.
"""

from __future__ import annotations

import jax.numpy as jnp
from torch.utils import dlpack

ENTRY = "B153"
KIND = "aliased-mutation"
SCHEDULES = "lazy"


def buggy():
    weights = jnp.ones((32, 32))
    view = dlpack.from_dlpack(weights)  # <- first
    view.mul_(2)  # <- second
    return float(weights.sum())


def fixed():
    weights = jnp.ones((32, 32))
    view = dlpack.from_dlpack(weights).clone()
    view.mul_(2)
    return float(weights.sum()), float(view.sum())
