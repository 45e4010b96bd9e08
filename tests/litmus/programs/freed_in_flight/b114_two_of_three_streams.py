"""Rows are used on three streams and recorded on two."""

import torch

ENTRY = "B114"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    load, distribute = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(load):
        rows = torch.full((500,), 2.0, device="cuda")
    torch.cuda.current_stream().wait_stream(load)
    distribute.wait_stream(load)
    with torch.cuda.stream(distribute):
        sent = rows + 1  # <- first
    pooled = rows.sum()
    rows.record_stream(torch.cuda.current_stream())
    del rows  # <- second
    torch.cuda.synchronize()
    return sent.sum().item(), pooled.item()


def fixed():
    load, distribute = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(load):
        rows = torch.full((500,), 2.0, device="cuda")
    torch.cuda.current_stream().wait_stream(load)
    distribute.wait_stream(load)
    with torch.cuda.stream(distribute):
        sent = rows + 1
    pooled = rows.sum()
    rows.record_stream(torch.cuda.current_stream())
    rows.record_stream(distribute)
    del rows
    torch.cuda.synchronize()
    return sent.sum().item(), pooled.item()
