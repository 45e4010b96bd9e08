"""Pageable memory is rewritten after an upload that staged it, and read after a download that waited."""

from __future__ import annotations

import torch


def program():
    host = torch.arange(4.0)
    first = host.to("cuda", non_blocking=True)
    host.neg_()
    second = host.cuda()
    host.zero_()
    host.copy_(first + second)
    return host.sum().item()
