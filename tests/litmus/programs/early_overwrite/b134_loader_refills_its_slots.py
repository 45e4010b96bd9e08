"""A loader fills a ring of pinned slots ahead of time; its non-blocking upload still reads the slot.

libffcv/ffcv#37: nonsense in a large system, which its reporter could not make smaller.
"""

from __future__ import annotations

import torch

ENTRY = "B134"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"

SLOTS = 2


class Loader:
    def __init__(self, batches, *, wait):
        self.ring = [torch.zeros(3).pin_memory() for _ in range(SLOTS)]
        self.uploaded = [torch.cuda.Event() for _ in range(SLOTS)]
        self.batches, self.wait = batches, wait

    def __iter__(self):
        for number in range(self.batches):
            slot, event = self.ring[number % SLOTS], self.uploaded[number % SLOTS]
            if self.wait:
                event.synchronize()
            slot.fill_(number)  # <- second
            batch = slot.to("cuda", non_blocking=True)  # <- first
            event.record()
            yield batch


def buggy():
    return torch.stack(list(Loader(5, wait=False))).cpu()


def fixed():
    return torch.stack(list(Loader(5, wait=True))).cpu()
