"""A planner reads index pointers on the host; the wait that covered it was removed as superfluous.

flashinfer-ai/flashinfer PR 564.
"""

from __future__ import annotations

import torch

ENTRY = "B015"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def split(pointers):
    sizes = {}
    for row in range(len(pointers) - 1):
        sizes[row] = int(pointers[row + 1]) - int(pointers[row])  # <- second
    return sizes


def upload(values):
    torch.tensor(values, device="cuda").sum().item()  # once the accidental wait, now before the copy


def plan(pointers, *, wait_after_copy):
    host = torch.empty(pointers.shape, dtype=pointers.dtype, pin_memory=True)
    upload([1.0, 2.0])
    host.copy_(pointers, non_blocking=True)  # <- first
    if wait_after_copy:
        upload([1.0, 2.0])
    return split(host)


def buggy():
    return plan(torch.tensor([0, 2, 5, 6], device="cuda"), wait_after_copy=False)


def fixed():
    return plan(torch.tensor([0, 2, 5, 6], device="cuda"), wait_after_copy=True)
