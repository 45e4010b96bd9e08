"""KV onboarding: attention waits for the event of another block."""

import torch

ENTRY = "B060"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    copy = torch.cuda.Stream()
    cache = torch.zeros(4, 64, device="cuda")
    saved = torch.ones(4, 64).pin_memory()
    torch.cuda.synchronize()
    ready = {}
    with torch.cuda.stream(copy):
        for block in (2, 3):
            cache[block].copy_(saved[block], non_blocking=True)  # <- first
            ready[block] = copy.record_event()
    torch.cuda.current_stream().wait_event(ready[2])
    scores = cache[3].sum()  # <- second
    result = scores.item()
    torch.cuda.synchronize()
    return result


def fixed():
    copy = torch.cuda.Stream()
    cache = torch.zeros(4, 64, device="cuda")
    saved = torch.ones(4, 64).pin_memory()
    torch.cuda.synchronize()
    ready = {}
    with torch.cuda.stream(copy):
        for block in (2, 3):
            cache[block].copy_(saved[block], non_blocking=True)
            ready[block] = copy.record_event()
    torch.cuda.current_stream().wait_event(ready[3])
    scores = cache[3].sum()
    result = scores.item()
    torch.cuda.synchronize()
    return result
