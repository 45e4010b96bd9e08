"""`item()` waits for its stream, so the copy queued before it has landed as well."""

from __future__ import annotations

import torch


def program():
    loss = torch.randn(8, device="cuda").square().mean()
    norms = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
    if loss.item() >= 0:
        return norms.sum()
    return None
