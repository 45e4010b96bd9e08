"""A captured copy reads its pinned source at each replay; the host stages something else there meanwhile."""

import torch

ENTRY = "B144"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    graph = torch.cuda.CUDAGraph()
    staging = torch.full((40,), 1.0).pin_memory()
    offsets = torch.zeros(40, device="cuda")
    with torch.cuda.graph(graph):
        offsets.copy_(staging, non_blocking=True)
        output = offsets * 2
    graph.replay()  # <- first
    staging.fill_(9)  # <- second
    torch.cuda.synchronize()
    return output.tolist()


def fixed():
    graph = torch.cuda.CUDAGraph()
    staging = torch.full((40,), 1.0).pin_memory()
    offsets = torch.zeros(40, device="cuda")
    with torch.cuda.graph(graph):
        offsets.copy_(staging, non_blocking=True)
        output = offsets * 2
    graph.replay()
    torch.cuda.current_stream().synchronize()
    staging.fill_(9)
    torch.cuda.synchronize()
    return output.tolist()
