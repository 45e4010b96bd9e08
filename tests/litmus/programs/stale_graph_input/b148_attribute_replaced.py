"""A module's attribute is replaced after the capture; the graph still writes where the old one was."""

import torch

ENTRY = "B148"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


class Counter:
    def __init__(self):
        self.count = torch.zeros(15, device="cuda")


def buggy():
    graph, counter = torch.cuda.CUDAGraph(), Counter()
    with torch.cuda.graph(graph):
        counter.count.add_(1)
    counter.count = torch.zeros(15, device="cuda")  # <- first
    graph.replay()  # <- second
    torch.cuda.synchronize()
    return counter.count.tolist()


def fixed():
    graph, counter = torch.cuda.CUDAGraph(), Counter()
    with torch.cuda.graph(graph):
        counter.count.add_(1)
    counter.count.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return counter.count.tolist()
