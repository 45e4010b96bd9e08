"""A graph library aggregates on its own stream over features that the framework's stream writes."""

import torch

ENTRY = "B078"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Graph:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.sources = torch.tensor([0, 1, 2, 2], device="cuda")
        self.targets = torch.tensor([1, 2, 0, 1], device="cuda")
        self.messages = torch.zeros(3, 4, device="cuda")
        torch.cuda.synchronize()


def buggy():
    graph = Graph()
    features = torch.zeros(3, 4, device="cuda")
    torch.cuda.synchronize()
    features += torch.arange(4.0, device="cuda")  # <- first
    with torch.cuda.stream(graph.stream):
        gathered = features.index_select(0, graph.sources)  # <- second
        graph.messages.index_add_(0, graph.targets, gathered)
    torch.cuda.synchronize()
    return graph.messages.tolist()


def fixed():
    graph = Graph()
    features = torch.zeros(3, 4, device="cuda")
    torch.cuda.synchronize()
    features += torch.arange(4.0, device="cuda")
    with torch.cuda.stream(torch.cuda.current_stream()):
        gathered = features.index_select(0, graph.sources)
        graph.messages.index_add_(0, graph.targets, gathered)
    torch.cuda.synchronize()
    return graph.messages.tolist()
