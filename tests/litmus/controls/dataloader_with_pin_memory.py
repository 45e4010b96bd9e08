"""A `DataLoader` with a pin thread, non-blocking uploads, one step a batch."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset


def program():
    data = TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))
    total = torch.zeros((), device="cuda")
    for rows, labels in DataLoader(data, batch_size=4, pin_memory=True):
        total += (rows.to("cuda", non_blocking=True).sum(1) * labels.to("cuda", non_blocking=True)).sum()
    return total.item()
