"""The best weights are kept as references, training goes on, and what is restored are the last ones.

pytorch/pytorch#34765: the same in at least four projects, and once in the official tutorial.
"""

from __future__ import annotations

import copy

import torch

ENTRY = "B171"
KIND = "moving-snapshot"
SCHEDULES = "lazy"


def train(keep):
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    best = {}
    for epoch in range(3):
        if epoch == 1:
            best = keep(model)
        optimiser.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimiser.step()  # <- second
    model.load_state_dict(best)
    return model.weight.detach()


def reference(model):
    return model.state_dict()  # <- first


def buggy():
    return train(reference)


def fixed():
    return train(lambda model: copy.deepcopy(model.state_dict()))
