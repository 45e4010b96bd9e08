"""The host fills one half of a pinned buffer while the other half is being uploaded."""

from __future__ import annotations

import torch


def program():
    pinned = torch.zeros(8).pin_memory()
    halves = pinned[:4], pinned[4:]
    halves[0].fill_(1)
    first = halves[0].cuda(non_blocking=True)
    halves[1].fill_(2)
    second = halves[1].cuda(non_blocking=True)
    return (first + second).tolist()
