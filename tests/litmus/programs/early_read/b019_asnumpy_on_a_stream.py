"""A helper returns a NumPy array at once, though its copy is queued on a stream of its own.

cupy/cupy#7820: the documents said that it waits.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B019"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def as_numpy(tensor, stream, *, blocking):
    host = torch.empty_like(tensor, device="cpu").pin_memory()
    with torch.cuda.stream(stream):
        host.copy_(tensor, non_blocking=True)  # <- first
    if blocking:
        stream.synchronize()
    return host.numpy()


def contract(*, blocking):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        network = torch.outer(torch.arange(3.0, device="cuda"), torch.arange(3.0, device="cuda"))
    array = as_numpy(network, stream, blocking=blocking)
    return np.einsum("ij,ij->", array, array)  # <- second


def buggy():
    return contract(blocking=False)


def fixed():
    return contract(blocking=True)
