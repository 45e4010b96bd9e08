"""Outputs of a captured graph are cloned before the next replay overwrites them.

pytorch/pytorch PR 188117.
"""

from __future__ import annotations

import torch


def program():
    static = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static * 2
    generations = []
    for number in range(3):
        static.fill_(number)
        graph.replay()
        generations.append(result.clone())
    return torch.stack(generations).cpu()
