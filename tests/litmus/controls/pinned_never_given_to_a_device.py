"""Pinned memory that no copy uses is ordinary memory."""

from __future__ import annotations

import torch


def program():
    pinned = torch.zeros(4, pin_memory=True)
    view = pinned.numpy()
    for step in range(3):
        view += step
        pinned.mul_(2)
    return float(view.sum()), pinned.tolist()
