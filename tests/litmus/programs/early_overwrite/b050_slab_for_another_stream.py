"""A pinned slab is given to a task on another stream while the first task's upload still reads it.

NVIDIA/cuCascade PR 158: one scan in 800 returned no rows, a wrong answer of a database.
"""

from __future__ import annotations

import torch

ENTRY = "B050"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class Slabs:
    def __init__(self, *, ordered):
        self.free, self.ordered = [(torch.zeros(2).pin_memory(), torch.cuda.Event())], ordered

    def take(self):
        slab, last_use = self.free.pop()
        if self.ordered:
            last_use.synchronize()
        return slab

    def give_back(self, slab, stream):
        self.free.append((slab, stream.record_event()))


def scan(slabs, statistics):
    stream = torch.cuda.Stream()
    slab = slabs.take()
    slab.copy_(torch.tensor(statistics))  # <- second
    with torch.cuda.stream(stream):
        bounds = slab.to("cuda", non_blocking=True)  # <- first
        kept = bounds[0] < bounds[1]
    slabs.give_back(slab, stream)
    return stream, kept


def run(slabs):
    tasks = [scan(slabs, bounds) for bounds in ([0.0, 9.0], [4.0, 2.0])]
    for stream, _ in tasks:
        stream.synchronize()
    return [bool(kept) for _, kept in tasks]


def buggy():
    return run(Slabs(ordered=False))


def fixed():
    return run(Slabs(ordered=True))
