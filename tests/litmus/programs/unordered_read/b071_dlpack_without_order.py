"""DLPack: exported with stream -1, that is with no order at all, and read on another stream."""

import torch
from torch.utils import dlpack

ENTRY = "B071"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    side = torch.cuda.Stream()
    x = torch.arange(20, device="cuda")
    torch.cuda.synchronize()
    x.add_(100)  # <- first
    capsule = x.__dlpack__(stream=-1)
    with torch.cuda.stream(side):
        y = dlpack.from_dlpack(capsule)
        z = y * y  # <- second
    torch.cuda.synchronize()
    return z.tolist()


def fixed():
    side = torch.cuda.Stream()
    x = torch.arange(20, device="cuda")
    torch.cuda.synchronize()
    x.add_(100)
    capsule = x.__dlpack__(stream=side.cuda_stream)
    with torch.cuda.stream(side):
        y = dlpack.from_dlpack(capsule)
        z = y * y
    torch.cuda.synchronize()
    return z.tolist()
