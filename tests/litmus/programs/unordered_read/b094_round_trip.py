"""DLPack round trip: the way there is ordered, the way back is not."""

import torch
from torch.utils import dlpack

ENTRY = "B094"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    there, back = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(back):
        x = torch.ones(12, device="cuda")
    with torch.cuda.stream(there):
        y = dlpack.from_dlpack(x.__dlpack__(stream=-1))
        there.wait_stream(back)
        y += 1  # <- first
    with torch.cuda.stream(back):
        z = dlpack.from_dlpack(y.__dlpack__(stream=-1))
        total = z.sum()  # <- second
    torch.cuda.synchronize()
    return total.item()


def fixed():
    there, back = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(back):
        x = torch.ones(12, device="cuda")
    there.wait_stream(back)
    with torch.cuda.stream(there):
        y = dlpack.from_dlpack(x)
        y += 1
    back.wait_stream(there)
    with torch.cuda.stream(back):
        z = dlpack.from_dlpack(y)
        total = z.sum()
    torch.cuda.synchronize()
    return total.item()
