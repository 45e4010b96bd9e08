"""A loader's plugin copies the next batch on its own stream into a tensor that the framework still reads."""

import torch

ENTRY = "B093"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    loader = torch.cuda.Stream()
    batches = [torch.full((100,), float(step), device="cuda") for step in range(2)]
    destination = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    seen = []
    for batch in batches:
        with torch.cuda.stream(loader):
            destination.copy_(batch)  # <- second
        torch.cuda.current_stream().wait_stream(loader)
        seen.append(destination.sum())  # <- first
    torch.cuda.synchronize()
    return [value.item() for value in seen]


def fixed():
    loader = torch.cuda.Stream()
    batches = [torch.full((100,), float(step), device="cuda") for step in range(2)]
    destination = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    seen = []
    for batch in batches:
        loader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(loader):
            destination.copy_(batch)
        torch.cuda.current_stream().wait_stream(loader)
        seen.append(destination.sum())
    torch.cuda.synchronize()
    return [value.item() for value in seen]
