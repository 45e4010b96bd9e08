"""Keys and values go up through one staging buffer: what arrives as keys are values.

1bit-MONSTER PR 2344 and PR 2436: refilled at once, nearly every trial is wrong; after 100 us, one in 3000.
"""

from __future__ import annotations

import torch

ENTRY = "B037"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def cache():
    return torch.zeros(2, 8, device="cuda")


def buggy():
    keys, values = cache()
    staging = torch.empty(8).pin_memory()
    torch.arange(8.0, out=staging)
    keys.copy_(staging, non_blocking=True)  # <- first
    torch.neg(torch.arange(8.0), out=staging)  # <- second
    values.copy_(staging, non_blocking=True)
    return (keys + values).cpu()


def fixed():
    keys, values = cache()
    staging = torch.empty(2, 8).pin_memory()
    torch.arange(8.0, out=staging[0])
    torch.neg(torch.arange(8.0), out=staging[1])
    keys.copy_(staging[0], non_blocking=True)
    values.copy_(staging[1], non_blocking=True)
    return (keys + values).cpu()
