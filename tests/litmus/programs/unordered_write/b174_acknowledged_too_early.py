"""A bucket of weights is shared by ranks; one acknowledges for all, and it is refilled while the others copy."""

import torch

ENTRY = "B174"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    ranks = [torch.cuda.Stream() for _ in range(2)]
    bucket = torch.ones(100, device="cuda")
    weights = [torch.zeros(100, device="cuda") for _ in ranks]
    torch.cuda.synchronize()
    copied = []
    for rank, stream in enumerate(ranks):
        with torch.cuda.stream(stream):
            weights[rank].copy_(bucket)  # <- first
            copied.append(stream.record_event())
    copied[0].synchronize()
    bucket.fill_(2)  # <- second
    torch.cuda.synchronize()
    return [weight.sum().item() for weight in weights]


def fixed():
    ranks = [torch.cuda.Stream() for _ in range(2)]
    bucket = torch.ones(100, device="cuda")
    weights = [torch.zeros(100, device="cuda") for _ in ranks]
    torch.cuda.synchronize()
    copied = []
    for rank, stream in enumerate(ranks):
        with torch.cuda.stream(stream):
            weights[rank].copy_(bucket)
            copied.append(stream.record_event())
    for event in copied:
        event.synchronize()
    bucket.fill_(2)
    torch.cuda.synchronize()
    return [weight.sum().item() for weight in weights]
