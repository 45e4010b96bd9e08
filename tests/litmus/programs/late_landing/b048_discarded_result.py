"""The result of an asynchronous read is dropped, and its memory is given to somebody else meanwhile.

tenstorrent/tt-metal PR 44207: the reader writes to memory that was freed.
"""

from __future__ import annotations

import torch

ENTRY = "B048"
KIND = "late-landing"
SCHEDULES = "lazy, starve"


class HostPool:
    def __init__(self):
        self.memory = torch.zeros(8, pin_memory=True)
        self.pending = None

    def read(self, tensor):
        self.memory.copy_(tensor, non_blocking=True)  # <- first
        self.pending = torch.cuda.current_stream().record_event()

    def take(self, *, wait):
        if wait and self.pending is not None:
            self.pending.synchronize()
        return self.memory


def run(*, wait):
    pool = HostPool()
    pool.read(torch.ones(8, device="cuda"))
    mine = pool.take(wait=wait).numpy()
    mine[:] = range(8)  # <- second
    torch.cuda.synchronize()
    return mine.tolist()


def buggy():
    return run(wait=False)


def fixed():
    return run(wait=True)
