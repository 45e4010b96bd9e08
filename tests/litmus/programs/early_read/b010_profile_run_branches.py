"""A branch is taken on a CPU value that has not arrived.

vllm-project/vllm-ascend PR 3372: seen in the profile run, on one generation of hardware.
"""

from __future__ import annotations

import torch

ENTRY = "B010"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def tokens_per_expert():
    chosen = torch.tensor([0, 2, 2, 1, 2], device="cuda")
    return torch.bincount(chosen, minlength=4)


def buggy():
    counts = tokens_per_expert().to("cpu", non_blocking=True)  # <- first
    if (counts > 2).any():  # <- second
        return "split"
    return "whole"


def fixed():
    counts = tokens_per_expert().to("cpu")
    if (counts > 2).any():
        return "split"
    return "whole"
