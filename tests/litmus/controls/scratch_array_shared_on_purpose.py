"""A tensor over a NumPy scratch array, which one thread fills and reads in turns."""

from __future__ import annotations

import numpy as np
import torch


def program():
    scratch = np.zeros(4, np.float32)
    tensor = torch.from_numpy(scratch)
    sums = []
    for step in range(3):
        scratch[:] = step
        sums.append(tensor.sum().item())
    return sums
