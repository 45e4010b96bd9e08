"""The next replay overwrites the output that another stream still copies out."""

import torch

ENTRY = "B146"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    out, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = torch.full((25,), 1.0, device="cuda")
    kept = torch.zeros(25, pin_memory=True)
    with torch.cuda.graph(graph):
        y = x * 10
    graph.replay()
    out.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(out):
        kept.copy_(y, non_blocking=True)  # <- first
    x.fill_(2)
    graph.replay()  # <- second
    torch.cuda.synchronize()
    return kept.tolist(), y.tolist()


def fixed():
    out, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = torch.full((25,), 1.0, device="cuda")
    kept = torch.zeros(25, pin_memory=True)
    with torch.cuda.graph(graph):
        y = x * 10
    graph.replay()
    out.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(out):
        kept.copy_(y, non_blocking=True)
    x.fill_(2)
    torch.cuda.current_stream().wait_stream(out)
    graph.replay()
    torch.cuda.synchronize()
    return kept.tolist(), y.tolist()
