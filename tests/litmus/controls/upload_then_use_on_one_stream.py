"""A batch goes up without waiting and is used on the same stream, step after step, from fresh memory."""

from __future__ import annotations

import torch


def program():
    model = torch.nn.Linear(4, 2).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randn(4, 3, 4):
        inputs = batch.pin_memory().to("cuda", non_blocking=True)
        loss = model(inputs).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()
