"""A pinned NumPy array is uploaded without the staging copy and zeroed in the next line.

cupy/cupy PR 5155: the staging copy was there to prevent exactly this.
"""

from __future__ import annotations

import torch

ENTRY = "B039"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def pinned_array():
    pinned = torch.ones(16).pin_memory()
    return pinned, pinned.numpy()


def buggy():
    pinned, array = pinned_array()
    on_device = torch.empty(16, device="cuda")
    on_device.copy_(pinned, non_blocking=True)  # <- first
    array[:] = 0  # <- second
    return on_device.sum().item()


def fixed():
    pinned, array = pinned_array()
    on_device = torch.empty(16, device="cuda")
    on_device.copy_(pinned, non_blocking=False)
    array[:] = 0
    return on_device.sum().item()
