"""A matcher returns a dictionary of CPU tensors; the caller filters with a mask that is not there.

cvg/LightGlue PR 148: only some machines show zeros.
"""

from __future__ import annotations

import torch

ENTRY = "B021"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def match(left, right):
    scores = left @ right.T
    best, index = scores.max(dim=1)
    return {"scores": best, "matches": index}


def points():
    return torch.eye(5, device="cuda")[[2, 0, 1]], torch.eye(5, device="cuda")


def buggy():
    found = {name: value.to("cpu", non_blocking=True) for name, value in match(*points()).items()}  # <- first
    return found["matches"][found["scores"] > 0.5]  # <- second


def fixed():
    found = {name: value.to("cpu", non_blocking=True) for name, value in match(*points()).items()}
    torch.cuda.synchronize()
    return found["matches"][found["scores"] > 0.5]
