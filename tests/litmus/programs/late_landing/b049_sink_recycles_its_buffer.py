"""A sink that grows cuts its buffer anew while an earlier copy from the device still fills it.

NVIDIA/cudf PR 22321: safe only as long as the copy happens to wait.
"""

from __future__ import annotations

import torch

ENTRY = "B049"
KIND = "late-landing"
SCHEDULES = "lazy, starve"


class Sink:
    def __init__(self):
        self.arena, self.size = torch.zeros(12, pin_memory=True), 0

    def append_from_device(self, column):
        self.arena[self.size : self.size + len(column)].copy_(column, non_blocking=True)  # <- first
        self.size += len(column)

    def shift(self, count):
        self.arena[count : self.size + count] = 0.5  # <- second
        self.size += count


def run(*, wait):
    sink = Sink()
    sink.append_from_device(torch.ones(4, device="cuda"))
    if wait:
        torch.cuda.synchronize()
    sink.shift(2)
    torch.cuda.synchronize()
    return sink.arena.tolist()


def buggy():
    return run(wait=False)


def fixed():
    return run(wait=True)
