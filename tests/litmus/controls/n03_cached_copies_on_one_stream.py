"""Activations are copied without waiting into a cache and used on their own stream; `item` waits before the host looks.

Disputed in ndif-team/nnsight PR 666.
"""

from __future__ import annotations

import torch


def program():
    cache = []
    hidden = torch.randn(2, 4).pin_memory().to("cuda", non_blocking=True)
    for _ in range(3):
        hidden = torch.tanh(hidden @ torch.eye(4, device="cuda"))
        host = torch.empty(2, 4, pin_memory=True)
        host.copy_(hidden, non_blocking=True)
        cache.append(host)
    if hidden.sum().item() < 100:  # waits for the stream, and with it for the copies before
        return torch.stack(cache).mean()
    return None
