"""The host asks an event until it says yes, and only then reads."""

from __future__ import annotations

import torch


def program():
    host = torch.empty(4, pin_memory=True)
    landed = torch.cuda.Event()
    host.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    landed.record()
    rounds = 0
    while not landed.query():
        rounds += 1
    return host.sum().item()
