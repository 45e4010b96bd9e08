"""Batches are gathered on the CPU by `cat` while their copies are on the way.

pytorch/pytorch#137951: the range of the gathered values drifts from the second round on.
"""

from __future__ import annotations

import torch

ENTRY = "B003"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def rounds():
    for number in range(4):
        yield torch.full((2, 3), float(number), device="cuda").mul_(2)


def buggy():
    gathered = torch.empty(0, 3)
    for batch in rounds():
        part = batch.to("cpu", non_blocking=True)  # <- first
        gathered = torch.cat([gathered, part])  # <- second
    return gathered.min(), gathered.max()


def fixed():
    gathered = torch.empty(0, 3)
    for batch in rounds():
        part = batch.to("cpu", non_blocking=True)
        torch.cuda.current_stream().synchronize()
        gathered = torch.cat([gathered, part])
    return gathered.min(), gathered.max()
