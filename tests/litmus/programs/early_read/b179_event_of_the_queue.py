"""An event on the compute queue is taken for the end of a copy that another engine does."""

import torch

ENTRY = "B179"
KIND = "early-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    engine = torch.cuda.Stream()
    host = torch.zeros(400, pin_memory=True)
    values = torch.arange(400.0, device="cuda")
    engine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(engine):
        host.copy_(values, non_blocking=True)  # <- first
    done = torch.cuda.current_stream().record_event()
    done.synchronize()
    largest = host.max().item()  # <- second
    torch.cuda.synchronize()
    return largest


def fixed():
    engine = torch.cuda.Stream()
    host = torch.zeros(400, pin_memory=True)
    values = torch.arange(400.0, device="cuda")
    engine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(engine):
        host.copy_(values, non_blocking=True)
        done = engine.record_event()
    done.synchronize()
    largest = host.max().item()
    torch.cuda.synchronize()
    return largest
