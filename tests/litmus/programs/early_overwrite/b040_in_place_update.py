"""A pinned tensor is updated in place right after its upload began.

pytorch/pytorch#126946: reported as a bug of memory ordering.
"""

from __future__ import annotations

import torch

ENTRY = "B040"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def buggy():
    counter = torch.zeros(3).pin_memory()
    history = []
    for _ in range(3):
        history.append(counter.to("cuda", non_blocking=True))  # <- first
        counter += 1  # <- second
    return torch.stack(history).cpu()


def fixed():
    counter = torch.zeros(3).pin_memory()
    history = []
    for _ in range(3):
        history.append(counter.to("cuda", non_blocking=True))
        torch.cuda.synchronize()
        counter += 1
    return torch.stack(history).cpu()
