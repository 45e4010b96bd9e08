"""An upload from pageable memory returns when it is staged; another stream takes that for done."""

import torch

ENTRY = "B065"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    side = torch.cuda.Stream()
    pageable = torch.arange(128.0)
    table = torch.zeros(128, device="cuda")
    torch.cuda.synchronize()
    table.copy_(pageable, non_blocking=True)  # <- first
    pageable.zero_()
    with torch.cuda.stream(side):
        top = table.max()  # <- second
    torch.cuda.synchronize()
    return top.item()


def fixed():
    side = torch.cuda.Stream()
    pageable = torch.arange(128.0)
    table = torch.zeros(128, device="cuda")
    torch.cuda.synchronize()
    table.copy_(pageable, non_blocking=True)
    pageable.zero_()
    torch.cuda.default_stream().synchronize()
    with torch.cuda.stream(side):
        top = table.max()
    torch.cuda.synchronize()
    return top.item()
