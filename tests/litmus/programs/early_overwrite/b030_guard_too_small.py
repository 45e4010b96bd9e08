"""An event guards most of the reused inputs; one tensor is rewritten before the wait.

vllm-project/vllm PR 24527, then PR 25279: the first repair left out writers that came earlier in the step.
"""

from __future__ import annotations

import torch

ENTRY = "B030"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def buffers():
    return torch.zeros(4, dtype=torch.int64).pin_memory(), torch.zeros(4, dtype=torch.int64).pin_memory()


def buggy():
    tokens, positions = buffers()
    uploaded = torch.cuda.Event()
    sums = []
    for step in range(3):
        positions.fill_(step)  # <- second
        uploaded.synchronize()
        tokens.fill_(10 * step)
        on_device = tokens.to("cuda", non_blocking=True)
        uploaded.record()
        at = positions.to("cuda", non_blocking=True)  # <- first
        sums.append(on_device + at)
    return torch.stack(sums).tolist()


def fixed():
    tokens, positions = buffers()
    uploaded = torch.cuda.Event()
    sums = []
    for step in range(3):
        uploaded.synchronize()
        positions.fill_(step)
        tokens.fill_(10 * step)
        on_device = tokens.to("cuda", non_blocking=True)
        at = positions.to("cuda", non_blocking=True)
        uploaded.record()
        sums.append(on_device + at)
    return torch.stack(sums).tolist()
