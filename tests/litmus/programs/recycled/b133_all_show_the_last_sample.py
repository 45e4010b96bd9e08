"""Arrays appended to a list all show one sample, since the pipeline returns the same memory.

NVIDIA/DALI#2910: adding a copy cured it.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B133"
KIND = "recycled"
SCHEDULES = "lazy"


class Pipeline:
    def __init__(self):
        self._decoded = np.empty((2, 3), np.uint8)

    def run(self, seed):
        self._decoded[...] = np.arange(seed, seed + 6).reshape(2, 3)  # <- second
        return self._decoded


def buggy():
    pipeline = Pipeline()
    images = []
    for seed in range(3):
        image = torch.as_tensor(pipeline.run(seed))  # <- first
        images.append(image)
    return torch.stack(images)


def fixed():
    pipeline = Pipeline()
    return torch.stack([torch.tensor(pipeline.run(seed)) for seed in range(3)])
