"""An upload and the kernel that reads it lie on one stream; a wait between them is not needed.

ggml-org/llama.cpp PR 13818: the reviewer explains why the proposed wait is superfluous.
"""

from __future__ import annotations

import torch


def program():
    mask = torch.tensor([1.0, 0.0, 1.0]).pin_memory()
    graph_input = torch.empty(3, device="cuda")
    graph_input.copy_(mask, non_blocking=True)
    return (graph_input * 2).sum().item()
