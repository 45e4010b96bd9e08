"""A rewritten runner lost the guard of its control data: two ranks disagree about the size of a batch.

vllm-project/vllm PR 54269: shows as a hang, without an error.
"""

from __future__ import annotations

import torch

ENTRY = "B033"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class Rank:
    def __init__(self):
        self.sizes = torch.zeros(2, dtype=torch.int64, pin_memory=True)
        self.view = self.sizes.numpy()
        self.uploaded = torch.cuda.Event()

    def step(self, size):
        self.view[:] = (size, -size)  # <- second
        return self.upload()

    def guarded_step(self, size):
        self.uploaded.synchronize()
        self.view[:] = (size, -size)
        return self.upload()

    def upload(self):
        sizes = self.sizes.to("cuda", non_blocking=True)  # <- first
        self.uploaded.record()
        return sizes


def buggy():
    ranks = Rank(), Rank()
    agreed = [ranks[0].step(size) + ranks[1].step(size) for size in (3, 5)]
    return torch.stack(agreed).cpu()


def fixed():
    ranks = Rank(), Rank()
    agreed = [ranks[0].guarded_step(size) + ranks[1].guarded_step(size) for size in (3, 5)]
    return torch.stack(agreed).cpu()
