"""A producer writes its one buffer again and again; each batch is used up before the next is asked for."""

from __future__ import annotations

import numpy as np
import torch


def produce():
    buffer = np.empty((4, 4), np.float32)
    for number in range(3):
        buffer.fill(number)
        yield buffer


def program():
    total = 0.0
    for batch in produce():
        total += float(batch.mean())
    for batch in produce():
        tensor = torch.from_numpy(batch)
        total += tensor.cuda().sum().item()
    return total
