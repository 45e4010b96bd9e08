"""A model manager moves a whole module to the CPU without waiting; the weights are read there.

invoke-ai/InvokeAI PR 6624: black images on some machines.
"""

from __future__ import annotations

import torch

ENTRY = "B009"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def fingerprint(module):
    return sum(float(weight.detach().abs().sum()) for weight in module.parameters())  # <- second


def buggy():
    decoder = torch.nn.Linear(6, 6).cuda()
    decoder.to("cpu", non_blocking=True)  # <- first
    return fingerprint(decoder)


def fixed():
    decoder = torch.nn.Linear(6, 6).cuda()
    decoder.to("cpu", non_blocking=False)
    return fingerprint(decoder)
