"""A pool remembers an event by the address of what was uploaded; for a slice it looks up another one.

pytorch/pytorch PR 68749: the event is dropped without a word, and the block is given out again.
"""

from __future__ import annotations

import torch

ENTRY = "B047"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class Pool:
    def __init__(self, key):
        self.block, self.key, self.events = torch.zeros(8, pin_memory=True), key, {}

    def take(self):
        event = self.events.pop(self.key(self.block), None)
        if event is not None:
            event.synchronize()
        return self.block

    def upload(self, part):
        on_device = part.to("cuda", non_blocking=True)  # <- first
        event = self.events[self.key(part)] = torch.cuda.Event()
        event.record()
        return on_device


def run(pool):
    uploaded = []
    for value in (1.0, 2.0):
        block = pool.take()
        block.fill_(value)  # <- second
        uploaded.append(pool.upload(block[2:6]))
    return torch.stack(uploaded).cpu()


def buggy():
    return run(Pool(lambda tensor: tensor.data_ptr()))


def fixed():
    return run(Pool(lambda tensor: tensor.untyped_storage().data_ptr()))
