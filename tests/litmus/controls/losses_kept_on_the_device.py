"""Detached losses are kept on the device and fetched once, at the end."""

from __future__ import annotations

import torch


def program():
    weight = torch.ones(3, device="cuda", requires_grad=True)
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    losses = []
    for _ in range(4):
        loss = (weight * weight).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().tolist()
