"""Staging moves tensors to the CPU, which does nothing for those on the CPU; the writer sees later steps.

pytorch/pytorch#144657: the official recipe does this.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import torch

ENTRY = "B167"
KIND = "moving-snapshot"
SCHEDULES = "lazy"


def train(stage):
    model = torch.nn.Linear(3, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(2, 3)).sum().backward()
    file = io.BytesIO()
    with ThreadPoolExecutor(1) as writer:
        staged = {name: stage(tensor) for name, tensor in model.state_dict().items()}
        saved = writer.submit(torch.save, staged, file)  # <- first
        optimiser.step()  # <- second
        saved.result()
    return file.getvalue()


def buggy():
    return train(lambda tensor: tensor.to("cpu"))


def fixed():
    return train(lambda tensor: tensor.to("cpu", copy=True))
