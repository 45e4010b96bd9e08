"""The next step reads counts through a NumPy view before the copy of the last step has landed.

vllm-project/vllm PR 36013: asynchronous scheduling took away the wait that used to lie in between.
"""

from __future__ import annotations

import torch

ENTRY = "B011"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    counts = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    counts_view = counts.numpy()
    drafted = torch.randint(0, 5, (3, 4), device="cuda")
    planned = []
    for step in range(3):
        if step:
            planned.append(int(counts_view.sum()))  # <- second
        counts.copy_(drafted[step] + 1, non_blocking=True)  # <- first
    return planned


def fixed():
    counts = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    counts_view = counts.numpy()
    landed = torch.cuda.Event()
    drafted = torch.randint(0, 5, (3, 4), device="cuda")
    planned = []
    for step in range(3):
        if step:
            landed.synchronize()
            planned.append(int(counts_view.sum()))
        counts.copy_(drafted[step] + 1, non_blocking=True)
        landed.record()
    return planned
