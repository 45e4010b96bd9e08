"""The host resets a result buffer for the next round, and the copy of the last round lands on top.

A late copy from the device lands on newer data of the host.
"""

from __future__ import annotations

import torch

ENTRY = "B044"
KIND = "late-landing"
SCHEDULES = "lazy, starve"


def buggy():
    result = torch.zeros(4).pin_memory()
    result.copy_(torch.full((4,), 9.0, device="cuda"), non_blocking=True)  # <- first
    result.fill_(-1)  # <- second
    torch.cuda.synchronize()
    return result.clone()


def fixed():
    result = torch.zeros(4).pin_memory()
    result.copy_(torch.full((4,), 9.0, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    result.fill_(-1)
    return result.clone()
