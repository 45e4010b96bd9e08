"""A hook inside backward moves the gradient without waiting and updates the CPU weight with it.

pytorch/pytorch PR 98667: optimiser in backward together with offload.
"""

from __future__ import annotations

import torch

ENTRY = "B017"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def train(*, non_blocking):
    on_host = torch.ones(3)
    weight = on_host.cuda().requires_grad_()

    def step(parameter):
        gradient = parameter.grad.to("cpu", non_blocking=non_blocking)  # <- first
        on_host.sub_(gradient, alpha=0.5)  # <- second
        parameter.grad = None

    weight.register_post_accumulate_grad_hook(step)
    (weight * 3).sum().backward()
    return on_host


def buggy():
    return train(non_blocking=True)


def fixed():
    return train(non_blocking=False)
