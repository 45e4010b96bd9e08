"""A scheduler that runs one iteration ahead writes the pinned page table of the iteration before.

NVIDIA/TensorRT-LLM PR 15546: attention reads the blocks of another batch.
"""

from __future__ import annotations

import torch

ENTRY = "B035"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"

TRAFFIC = 4


def launch(table, on_device, copies):
    with torch.cuda.stream(copies):
        for _ in range(TRAFFIC):
            torch.ones(16, device="cuda").mul_(2)
        on_device.copy_(table, non_blocking=True)  # <- first


def schedule(table, iteration):
    table[:, 1].copy_(torch.arange(2) + 10 * iteration)  # <- second


def buggy():
    copies = torch.cuda.Stream()
    on_device = torch.zeros(2, 3, device="cuda", dtype=torch.int64)
    copies.wait_stream(torch.cuda.current_stream())
    table = torch.zeros(2, 3, dtype=torch.int64).pin_memory()
    for iteration in range(2):
        schedule(table, iteration)
        launch(table, on_device, copies)
    copies.synchronize()
    return on_device.cpu()


def fixed():
    copies = torch.cuda.Stream()
    on_device = torch.zeros(2, 3, device="cuda", dtype=torch.int64)
    copies.wait_stream(torch.cuda.current_stream())
    for iteration in range(2):
        table = torch.zeros(2, 3, dtype=torch.int64).pin_memory()
        schedule(table, iteration)
        launch(table, on_device, copies)
    copies.synchronize()
    return on_device.cpu()
