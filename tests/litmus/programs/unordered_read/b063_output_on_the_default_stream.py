"""The output of a run on another stream is copied to the host on the default stream."""

import torch

ENTRY = "B063"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    run = torch.cuda.Stream()
    x = torch.arange(64.0, device="cuda")
    output = torch.empty(64, device="cuda")
    run.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(run):
        torch.sqrt(x, out=output)  # <- first
    values = output.cpu()  # <- second
    torch.cuda.synchronize()
    return values


def fixed():
    run = torch.cuda.Stream()
    x = torch.arange(64.0, device="cuda")
    output = torch.empty(64, device="cuda")
    run.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(run):
        torch.sqrt(x, out=output)
    run.synchronize()
    values = output.cpu()
    torch.cuda.synchronize()
    return values
