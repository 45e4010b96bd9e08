"""A scratch buffer is reused right after its upload; pinning it made the upload really asynchronous.

ggml-org/llama.cpp PR 3254: it only worked because memory that is not pinned is staged first.
"""

from __future__ import annotations

import torch

ENTRY = "B053"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def positions(scratch):
    rows = []
    for start in (0, 4):
        torch.arange(start, start + 4, out=scratch)  # <- second
        rows.append(scratch.to("cuda", non_blocking=True))  # <- first
    return torch.cat(rows).tolist()


def buggy():
    return positions(torch.zeros(4, dtype=torch.int64, pin_memory=True))


def fixed():
    return positions(torch.zeros(4, dtype=torch.int64))
