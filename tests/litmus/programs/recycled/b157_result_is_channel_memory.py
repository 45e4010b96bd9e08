"""The result of a compiled graph is a view of its channel; the next execution writes the channel again.

ray-project/ray PR 51030: a page on the trap was added to the documents.
"""

from __future__ import annotations

import mmap

import jax.numpy as jnp
import numpy as np

ENTRY = "B157"
KIND = "recycled"
SCHEDULES = "lazy"


class CompiledGraph:
    def __init__(self):
        self.channel = np.frombuffer(mmap.mmap(-1, 4096), np.float32)

    def execute(self, value):
        np.add(np.zeros(len(self.channel)), value, out=self.channel, casting="unsafe")  # <- second
        return self.channel


def buggy():
    graph = CompiledGraph()
    first = jnp.from_dlpack(graph.execute(1.0))  # <- first
    second = jnp.array(graph.execute(2.0))
    return float((second - first).mean())


def fixed():
    graph = CompiledGraph()
    first = jnp.array(graph.execute(1.0))
    second = jnp.array(graph.execute(2.0))
    return float((second - first).mean())
