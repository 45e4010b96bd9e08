"""A graph's memory is planned anew while its logits are read back: the next graph uses part of them."""

import torch

ENTRY = "B101"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    readback = torch.cuda.Stream()
    arena = torch.zeros(128, device="cuda")
    host = torch.zeros(64, pin_memory=True)
    logits = arena[0:64]
    logits += 2
    readback.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(readback):
        host.copy_(logits, non_blocking=True)  # <- first
    hidden = arena[48:112]
    hidden.fill_(-7)  # <- second
    readback.synchronize()
    result = host.sum().item()
    torch.cuda.synchronize()
    return result


def fixed():
    readback = torch.cuda.Stream()
    arena = torch.zeros(128, device="cuda")
    host = torch.zeros(64, pin_memory=True)
    logits = arena[0:64]
    logits += 2
    readback.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(readback):
        host.copy_(logits, non_blocking=True)
    readback.synchronize()
    hidden = arena[48:112]
    hidden.fill_(-7)
    result = host.sum().item()
    torch.cuda.synchronize()
    return result
