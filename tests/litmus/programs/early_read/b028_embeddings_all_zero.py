"""Embeddings are moved without waiting and put into one NumPy array per batch.

webis-de/small-text#77: an approval test sees zeros, sometimes.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B028"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def embed(*, wait):
    table = torch.nn.Embedding(10, 4).cuda()
    rows = np.empty((6, 4), np.float32)
    with torch.no_grad():
        for start in range(0, 6, 2):
            words = torch.arange(start, start + 2).cuda()
            part = table(words).to("cpu", non_blocking=True)  # <- first
            if wait:
                torch.cuda.synchronize()
            rows[start : start + 2] = part  # <- second
    return rows


def buggy():
    return embed(wait=False)


def fixed():
    return embed(wait=True)
