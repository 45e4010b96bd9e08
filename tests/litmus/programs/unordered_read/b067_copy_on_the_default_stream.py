"""A library's copy() runs on the default stream, whatever the current one is."""

import torch

ENTRY = "B067"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    with torch.cuda.stream(torch.cuda.Stream()):
        array = torch.zeros(100, device="cuda")
        torch.cuda.synchronize()
        array += 5  # <- first
        with torch.cuda.stream(torch.cuda.default_stream()):
            duplicate = array.clone()  # <- second
        torch.cuda.synchronize()
        return duplicate.sum().item()


def fixed():
    with torch.cuda.stream(torch.cuda.Stream()):
        array = torch.zeros(100, device="cuda")
        torch.cuda.synchronize()
        array += 5
        with torch.cuda.stream(torch.cuda.current_stream()):
            duplicate = array.clone()
        torch.cuda.synchronize()
        return duplicate.sum().item()
