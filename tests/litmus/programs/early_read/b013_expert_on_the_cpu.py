"""An expert that lives on the CPU runs on activations that are still on their way.

efeslab/fiddler PR 6: the output of a mixture of experts differs from run to run.
"""

from __future__ import annotations

import torch

ENTRY = "B013"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def buggy():
    gate, expert = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4)
    with torch.no_grad():
        hidden = gate(torch.randn(3, 4, device="cuda"))
        routed = hidden.to("cpu", non_blocking=True)  # <- first
        return expert(routed).cuda() + hidden  # <- second


def fixed():
    gate, expert = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4)
    with torch.no_grad():
        hidden = gate(torch.randn(3, 4, device="cuda"))
        routed = hidden.to("cpu", non_blocking=False)
        return expert(routed).cuda() + hidden
