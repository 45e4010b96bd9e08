"""Lengths are moved without waiting and turned into a list that drives the loop.

sgl-project/sglang PR 16493: found by reading, not by failing.
"""

from __future__ import annotations

import torch

ENTRY = "B014"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    lengths = torch.tensor([3, 1, 2], device="cuda").cumsum(0)
    host = lengths.to(device="cpu", dtype=torch.int64, non_blocking=True)  # <- first
    return [list(range(length)) for length in host.tolist()]  # <- second


def fixed():
    lengths = torch.tensor([3, 1, 2], device="cuda").cumsum(0)
    host = lengths.to(device="cpu", dtype=torch.int64)
    return [list(range(length)) for length in host.tolist()]
