"""An optimiser on the CPU steps on gradients that are still being copied from the device.

facebookresearch/fairscale PR 496: no unit test could be built that shows it.
"""

from __future__ import annotations

import torch

ENTRY = "B016"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def train(*, non_blocking):
    master = torch.nn.Parameter(torch.ones(4))
    master.grad = torch.zeros(4).pin_memory()
    optimiser = torch.optim.SGD([master], lr=0.1)
    for _ in range(2):
        weight = master.detach().cuda().requires_grad_()
        loss = (weight * torch.arange(4.0, device="cuda")).sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        master.grad.copy_(gradient, non_blocking=non_blocking)  # <- first
        optimiser.step()  # <- second
    return master.detach()


def buggy():
    return train(non_blocking=True)


def fixed():
    return train(non_blocking=False)
