"""The NumPy view of a destination is taken at once, and looked at when the copy has landed."""

from __future__ import annotations

import torch


def program():
    host = torch.empty(4, pin_memory=True)
    host.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    view = host.numpy()
    torch.cuda.synchronize()
    return float(view.sum())
