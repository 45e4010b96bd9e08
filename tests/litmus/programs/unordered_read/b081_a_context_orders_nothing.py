"""Entering a stream's context orders nothing: inputs filled on the default stream are read at once."""

import torch

ENTRY = "B081"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    a = torch.ones(16, device="cuda")
    torch.cuda.synchronize()
    b = torch.ones(16, device="cuda")  # <- first
    with torch.cuda.stream(streams[0]):
        c = a + 1
    with torch.cuda.stream(streams[1]):
        d = b + 1  # <- second
    torch.cuda.synchronize()
    return (c + d).tolist()


def fixed():
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    a = torch.ones(16, device="cuda")
    torch.cuda.synchronize()
    b = torch.ones(16, device="cuda")
    with torch.cuda.stream(streams[0]):
        c = a + 1
    with torch.cuda.stream(streams[1]):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        d = b + 1
    torch.cuda.synchronize()
    return (c + d).tolist()
