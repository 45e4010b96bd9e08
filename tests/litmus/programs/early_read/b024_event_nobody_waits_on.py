"""An asynchronous wrapper returns its event, and no caller waits for it.

StreamHPC/gromacs#31: forces of a simulation.
"""

from __future__ import annotations

import torch

ENTRY = "B024"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def copy_forces_async(forces, host):
    landed = torch.cuda.Event()
    host.copy_(forces, non_blocking=True)  # <- first
    landed.record()
    return landed


def integrate(position, host):
    position += 0.01 * host  # <- second


def buggy():
    position, host = torch.zeros(6), torch.empty(6, pin_memory=True)
    for step in range(2):
        copy_forces_async(torch.full((6,), 1.0 + step, device="cuda"), host)
        integrate(position, host)
    return position


def fixed():
    position, host = torch.zeros(6), torch.empty(6, pin_memory=True)
    for step in range(2):
        copy_forces_async(torch.full((6,), 1.0 + step, device="cuda"), host).synchronize()
        integrate(position, host)
    return position
