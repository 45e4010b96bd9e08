"""The destination of a copy is exported by DLPack and read by another library at once.

apache/tvm PR 6586: the call that fetches bytes did not wait on every back end.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B026"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def fetch(tensor):
    host = torch.empty(tensor.shape, pin_memory=True)
    host.copy_(tensor, non_blocking=True)  # <- first
    return np.from_dlpack(host)


def buggy():
    array = fetch(torch.linspace(0, 1, 8, device="cuda"))
    return float(np.median(array))  # <- second


def fixed():
    array = fetch(torch.linspace(0, 1, 8, device="cuda"))
    torch.cuda.synchronize()
    return float(np.median(array))
