"""A background writer reads staging memory that the next step's copy is already filling.

NVIDIA/Megatron-LM PR 2288: the parent dropped its references, and pinned memory is not copied on write.
"""

from __future__ import annotations

import threading

import torch

ENTRY = "B051"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def write(go, staged, files):
    go.wait()
    files.append(staged.tolist())  # <- second


def train(*, keep):
    weights = torch.zeros(4, device="cuda")
    staging, files = torch.zeros(4).pin_memory(), list[list[float]]()
    for step in range(2):
        weights.add_(step + 1)
        staging.copy_(weights)
        staged = staging.clone() if keep else staging
        go = threading.Event()
        writer = threading.Thread(target=write, args=(go, staged, files), daemon=True)
        writer.start()
        weights.add_(10)
        staging.copy_(weights, non_blocking=True)  # <- first
        go.set()
        writer.join()
        torch.cuda.synchronize()
    return files


def buggy():
    return train(keep=False)


def fixed():
    return train(keep=True)
