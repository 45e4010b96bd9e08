"""The destination of a reduction is dropped while the reduction stream still writes to it."""

import torch

ENTRY = "B121"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    reduction = torch.cuda.Stream()
    destination = torch.zeros(90, device="cuda")
    shard = torch.full((90,), 4.0, device="cuda")
    reduction.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(reduction):
        destination += shard  # <- first
    destination = torch.ones(90, device="cuda")  # <- second
    torch.cuda.current_stream().wait_stream(reduction)
    loss = (destination + shard).sum().item()
    torch.cuda.synchronize()
    return loss


def fixed():
    reduction = torch.cuda.Stream()
    destination = torch.zeros(90, device="cuda")
    shard = torch.full((90,), 4.0, device="cuda")
    reduction.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(reduction):
        destination += shard
    destination.record_stream(reduction)
    destination = torch.ones(90, device="cuda")
    torch.cuda.current_stream().wait_stream(reduction)
    loss = (destination + shard).sum().item()
    torch.cuda.synchronize()
    return loss
