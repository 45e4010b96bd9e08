"""Two equal tensors are copied without waiting and found to be different.

pytorch/pytorch#140296: what should a copy to the CPU promise?
"""

from __future__ import annotations

import torch

ENTRY = "B005"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    left = torch.arange(32, device="cuda")
    right = left.clone()
    pair = [side.to("cpu", non_blocking=True) for side in (left, right)]  # <- first
    return torch.equal(*pair)  # <- second


def fixed():
    left = torch.arange(32, device="cuda")
    right = left.clone()
    pair = [side.to("cpu", non_blocking=True) for side in (left, right)]
    torch.accelerator.synchronize()
    return torch.equal(*pair)
