"""A new tensor is bound in place of the static input; the graph reads where the old one was."""

import torch

ENTRY = "B149"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    graph = torch.cuda.CUDAGraph()
    pose = torch.zeros(12, device="cuda")
    with torch.cuda.graph(graph):
        error = pose * 2
    pose = torch.full((12,), 3.0, device="cuda")  # <- first
    graph.replay()  # <- second
    torch.cuda.synchronize()
    return pose.tolist(), error.tolist()


def fixed():
    graph = torch.cuda.CUDAGraph()
    pose = torch.zeros(12, device="cuda")
    with torch.cuda.graph(graph):
        error = pose * 2
    pose.copy_(torch.full((12,), 3.0, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    return pose.tolist(), error.tolist()
