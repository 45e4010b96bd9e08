"""Three copies, one event behind the last: waiting for it covers all of them."""

from __future__ import annotations

import torch


def program():
    hosts = [torch.empty(2, pin_memory=True) for _ in range(3)]
    for number, host in enumerate(hosts):
        host.copy_(torch.full((2,), float(number), device="cuda"), non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return torch.cat(hosts).sum().item()
