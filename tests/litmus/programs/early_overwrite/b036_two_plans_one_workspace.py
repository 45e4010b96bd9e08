"""Two planners share one pinned workspace inside a library; the second plan lands in the first.

sgl-project/mini-sglang PR 103 and others: only when host and device overlap.
"""

from __future__ import annotations

import torch

ENTRY = "B036"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class Planner:
    def __init__(self):
        self.workspace = torch.empty(8, dtype=torch.int32, pin_memory=True)

    def plan(self, lengths):
        self.workspace[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)  # <- second
        return self.workspace.cuda(non_blocking=True)  # <- first


def run(first, second):
    prefill = first.plan([5, 6, 7])
    decode = second.plan([1, 1])
    return prefill[:3].sum() - decode[:2].sum()


def buggy():
    shared = Planner()
    return run(shared, shared).item()


def fixed():
    return run(Planner(), Planner()).item()
