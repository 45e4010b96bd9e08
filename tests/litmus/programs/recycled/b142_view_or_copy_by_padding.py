"""A frame becomes an array by a view or by a copy, as its padding wants; those without padding change later.

PyAV-Org/PyAV#891.
"""

from __future__ import annotations

import numpy as np
import torch

ENTRY = "B142"
KIND = "recycled"
SCHEDULES = "lazy"


class Plane:
    def __init__(self, width, stride):
        self.memory, self.width = np.zeros((2, stride), np.uint8), width

    def decode_into(self, value):
        self.memory[:, : self.width] = value  # <- second

    def to_tensor(self):
        rows = self.memory[:, : self.width]
        return torch.from_numpy(np.ascontiguousarray(rows))  # <- first


def two_frames(plane):
    plane.decode_into(1)
    earlier = plane.to_tensor()
    plane.decode_into(2)
    return earlier.sum().item()


def buggy():
    return two_frames(Plane(width=4, stride=4))


def fixed():
    return two_frames(Plane(width=4, stride=6))
