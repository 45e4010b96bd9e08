"""A debugging fill of a fresh tensor comes after the wait that orders the stream which then writes it."""

import torch

ENTRY = "B111"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    communication = torch.cuda.Stream()
    tokens = torch.ones(2, 64, device="cuda")
    communication.wait_stream(torch.cuda.current_stream())
    combined = torch.empty(64, device="cuda").fill_(float("nan"))  # <- first
    with torch.cuda.stream(communication):
        torch.sum(tokens, dim=0, out=combined)  # <- second
    torch.cuda.current_stream().wait_stream(communication)
    result = combined.sum().item()
    torch.cuda.synchronize()
    return result


def fixed():
    communication = torch.cuda.Stream()
    tokens = torch.ones(2, 64, device="cuda")
    combined = torch.empty(64, device="cuda").fill_(float("nan"))
    communication.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(communication):
        torch.sum(tokens, dim=0, out=combined)
    torch.cuda.current_stream().wait_stream(communication)
    result = combined.sum().item()
    torch.cuda.synchronize()
    return result
