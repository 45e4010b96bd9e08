"""One mask buffer is refilled every iteration while its upload of the last one may still read it.

vllm-project/vllm PR 31841: an engine died under load, now and then. Cured by two buffers that alternate.
"""

from __future__ import annotations

import torch

ENTRY = "B031"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def buggy():
    mask = torch.zeros(6, dtype=torch.bool).pin_memory()
    hidden = torch.ones(6, device="cuda")
    for step in range(4):
        mask.copy_(torch.arange(6) < step)  # <- second
        hidden.masked_fill_(mask.to("cuda", non_blocking=True), float(step))  # <- first
    return hidden.cpu()


def fixed():
    masks = [torch.zeros(6, dtype=torch.bool).pin_memory() for _ in range(2)]
    uploaded = [torch.cuda.Event(), torch.cuda.Event()]
    hidden = torch.ones(6, device="cuda")
    for step in range(4):
        uploaded[step % 2].synchronize()
        mask = masks[step % 2].copy_(torch.arange(6) < step)
        hidden.masked_fill_(mask.to("cuda", non_blocking=True), float(step))
        uploaded[step % 2].record()
    return hidden.cpu()
