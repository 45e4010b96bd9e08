"""wait_stream orders the gather, but the scheduler drops the indices before it has run."""

import torch

ENTRY = "B116"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    forward = torch.cuda.Stream()
    cache = torch.arange(400.0, device="cuda")
    indices = torch.arange(0, 400, 4, device="cuda")
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        gathered = cache[indices]  # <- first
    del indices  # <- second
    torch.cuda.synchronize()
    return gathered.sum().item()


def fixed():
    forward = torch.cuda.Stream()
    cache = torch.arange(400.0, device="cuda")
    indices = torch.arange(0, 400, 4, device="cuda")
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        gathered = cache[indices]
    indices.record_stream(forward)
    del indices
    torch.cuda.synchronize()
    return gathered.sum().item()
