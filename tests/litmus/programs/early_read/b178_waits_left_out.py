"""What a compiler left of a correct program: the copies are asynchronous, and the waits for their events are gone."""

import torch

ENTRY = "B178"
KIND = "early-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    parts = [torch.full((50,), float(part), device="cuda") for part in range(3)]
    landed = [part.to("cpu", non_blocking=True) for part in parts]  # <- first
    whole = torch.cat(landed)  # <- second
    torch.cuda.synchronize()
    return whole.sum().item()


def fixed():
    parts = [torch.full((50,), float(part), device="cuda") for part in range(3)]
    landed, copied = [], []
    for part in parts:
        landed.append(part.to("cpu", non_blocking=True))
        copied.append(torch.cuda.current_stream().record_event())
    for event in copied:
        event.synchronize()
    whole = torch.cat(landed)
    torch.cuda.synchronize()
    return whole.sum().item()
