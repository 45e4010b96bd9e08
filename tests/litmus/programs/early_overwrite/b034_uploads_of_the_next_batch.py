"""Uploads are seen to hold the values of the next batch, since arrays are filled again by NumPy.

vllm-project/vllm-ascend PR 16428: thousands of wrong token ids; cured by an upload that owns its source.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B034"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"

BATCHES = ([11, 12, 13], [21, 22], [31, 32, 33, 34])


def buggy():
    pinned = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    ids = pinned.numpy()
    batches = []
    for batch in BATCHES:
        np.copyto(ids[: len(batch)], batch)  # <- second
        batches.append(pinned[: len(batch)].to("cuda", non_blocking=True))  # <- first
    return [batch.tolist() for batch in batches]


def fixed():
    batches = []
    for batch in BATCHES:
        owned = torch.tensor(batch).pin_memory()
        batches.append(owned.to("cuda", non_blocking=True))
    return [batch.tolist() for batch in batches]
