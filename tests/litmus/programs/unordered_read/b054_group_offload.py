"""Group offload: the compute stream never waits for the stream that uploads the weights."""

import torch

ENTRY = "B054"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    transfer = torch.cuda.Stream()
    offloaded = [torch.full((64, 64), 0.5).pin_memory() for _ in range(3)]
    x = torch.ones(8, 64, device="cuda")
    for layer in offloaded:
        with torch.cuda.stream(transfer):
            weight = layer.to("cuda", non_blocking=True)  # <- first
        x = x @ weight  # <- second
        torch.cuda.synchronize()
    return x.sum().item()


def fixed():
    transfer = torch.cuda.Stream()
    offloaded = [torch.full((64, 64), 0.5).pin_memory() for _ in range(3)]
    x = torch.ones(8, 64, device="cuda")
    for layer in offloaded:
        with torch.cuda.stream(transfer):
            weight = layer.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(transfer)
        x = x @ weight
        torch.cuda.synchronize()
    return x.sum().item()
