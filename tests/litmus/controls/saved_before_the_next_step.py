"""The state is saved by reference, and the save ends before the next step begins."""

from __future__ import annotations

import io

import torch


def program():
    model = torch.nn.Linear(3, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        torch.save(model.state_dict(), io.BytesIO())
        optimiser.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimiser.step()
    return model.weight.detach()
