"""A tensor is stashed on a side stream, and its storage is released while the copy is pending."""

import torch

ENTRY = "B113"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    side = torch.cuda.Stream()
    stash = torch.zeros(2048, pin_memory=True)
    weights = torch.full((2048,), 8.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        stash.copy_(weights, non_blocking=True)  # <- first
    weights.untyped_storage().resize_(0)  # <- second
    scratch = torch.full((2048,), -1.0, device="cuda")
    torch.cuda.synchronize()
    return stash.sum().item(), scratch.sum().item()


def fixed():
    side = torch.cuda.Stream()
    stash = torch.zeros(2048, pin_memory=True)
    weights = torch.full((2048,), 8.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        stash.copy_(weights, non_blocking=True)
    weights.record_stream(side)
    weights.untyped_storage().resize_(0)
    scratch = torch.full((2048,), -1.0, device="cuda")
    torch.cuda.synchronize()
    return stash.sum().item(), scratch.sum().item()
