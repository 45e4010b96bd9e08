"""Outputs are copied into memory shared with another process before they have arrived.

learning-at-home/hivemind PR 541: the mistake keeps coming back, since tests without a GPU cannot see it.
"""

from __future__ import annotations

import mmap

import torch

ENTRY = "B029"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def send(output):
    shared = mmap.mmap(-1, output.nbytes)
    shared.write(output.numpy().tobytes())  # <- second
    return shared


def buggy():
    outputs = torch.ones(16, device="cuda").cumsum(0)
    return send(outputs.to("cpu", non_blocking=True))  # <- first


def fixed():
    outputs = torch.ones(16, device="cuda").cumsum(0)
    return send(outputs.to("cpu", non_blocking=False))
