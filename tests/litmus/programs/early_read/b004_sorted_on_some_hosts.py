"""Scores are moved without waiting and sorted on the CPU; right on one machine, wrong on another.

pytorch/pytorch#127612: reproduced on some hosts only.
"""

from __future__ import annotations

import torch

ENTRY = "B004"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    scores = torch.tensor([0.2, 0.9, 0.5], device="cuda").log()
    on_host = scores.to("cpu", non_blocking=True)  # <- first
    order = torch.argsort(on_host, descending=True)  # <- second
    return order.tolist()


def fixed():
    scores = torch.tensor([0.2, 0.9, 0.5], device="cuda").log()
    on_host = scores.to("cpu", non_blocking=True)
    torch.cuda.default_stream().synchronize()
    order = torch.argsort(on_host, descending=True)
    return order.tolist()
