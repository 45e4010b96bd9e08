"""Two transfers fill a request's blocks; one fails, and its sibling still writes what was given back."""

import torch

ENTRY = "B099"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    handles = [torch.cuda.Stream(), torch.cuda.Stream()]
    blocks = torch.zeros(2, 64, device="cuda")
    received = torch.ones(2, 64).pin_memory()
    torch.cuda.synchronize()
    finished = []
    for block, handle in enumerate(handles):
        with torch.cuda.stream(handle):
            blocks[block].copy_(received[block], non_blocking=True)  # <- first
            finished.append(handle.record_event())
    finished[0].synchronize()
    blocks.fill_(5)  # <- second
    torch.cuda.synchronize()
    return blocks.tolist()


def fixed():
    handles = [torch.cuda.Stream(), torch.cuda.Stream()]
    blocks = torch.zeros(2, 64, device="cuda")
    received = torch.ones(2, 64).pin_memory()
    torch.cuda.synchronize()
    finished = []
    for block, handle in enumerate(handles):
        with torch.cuda.stream(handle):
            blocks[block].copy_(received[block], non_blocking=True)
            finished.append(handle.record_event())
    for event in finished:
        event.synchronize()
    blocks.fill_(5)
    torch.cuda.synchronize()
    return blocks.tolist()
