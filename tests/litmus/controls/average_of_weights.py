"""A running average of the weights is kept beside the model; the names of its state are read now and then."""

from __future__ import annotations

import copy

import torch


def program():
    model = torch.nn.Linear(3, 1)
    average = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    names = []
    for _ in range(3):
        names = list(model.state_dict())
        optimiser.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimiser.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
    return names, average.weight.detach()
