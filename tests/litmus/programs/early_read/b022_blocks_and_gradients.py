"""A block of data and its gradient move together without waiting; CPU code sorts by the values.

metatensor/metatensor PR 1120.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

ENTRY = "B022"
KIND = "early-read"
SCHEDULES = "lazy, starve"


class Block(NamedTuple):
    values: torch.Tensor
    gradient: torch.Tensor

    def to(self, device, *, non_blocking):
        return Block(*(part.to(device, non_blocking=non_blocking) for part in self))  # <- first


def block():
    values = torch.tensor([3.0, 1.0, 2.0], device="cuda")
    return Block(values.square(), 2 * values)


def buggy():
    moved = block().to("cpu", non_blocking=True)
    return sorted(range(3), key=moved.values.tolist().__getitem__)  # <- second


def fixed():
    moved = block().to("cpu", non_blocking=False)
    return sorted(range(3), key=moved.values.tolist().__getitem__)
