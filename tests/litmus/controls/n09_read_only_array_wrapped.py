"""A read-only array becomes a tensor; nobody else holds the memory, so the warning is a false alarm.

lance-format/lance PR 3621.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch


def program():
    column = np.frombuffer(np.arange(6, dtype=np.int64).tobytes(), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(column)
    return (tensor.cuda() + 1).sum().item()
