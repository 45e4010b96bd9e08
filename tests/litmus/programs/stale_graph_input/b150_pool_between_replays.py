"""A constant that was captured is dropped, and an ordinary operation between replays takes its memory."""

import torch

ENTRY = "B150"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(64, device="cuda")
    scale = torch.full((64,), 2.0, device="cuda")
    with torch.cuda.graph(graph):
        y = x * scale
    del scale  # <- first
    other = torch.full((64,), -1.0, device="cuda")
    graph.replay()  # <- second
    torch.cuda.synchronize()
    return y.tolist(), other.tolist()


def fixed():
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(64, device="cuda")
    scale = torch.full((64,), 2.0, device="cuda")
    with torch.cuda.graph(graph):
        y = x * scale
    other = torch.full((64,), -1.0, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    del scale
    return y.tolist(), other.tolist()
