"""A tensor is moved to the CPU without waiting and computed on in the next line.

pytorch/pytorch#86264: adding a sleep seemed to cure it.
"""

from __future__ import annotations

import torch

ENTRY = "B002"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    weights = torch.randn(64, device="cuda")
    on_host = weights.exp().to(torch.device("cpu"), non_blocking=True)  # <- first
    return on_host / on_host.sum()  # <- second


def fixed():
    weights = torch.randn(64, device="cuda")
    on_host = weights.exp().to(torch.device("cpu"), non_blocking=True)
    torch.cuda.synchronize()
    return on_host / on_host.sum()
