"""A getter hands out one element of a column before the copy of that element ran.

NVIDIA/cudf#6700.
"""

from __future__ import annotations

import torch

ENTRY = "B020"
KIND = "early-read"
SCHEDULES = "lazy, starve"


class Column:
    def __init__(self, values):
        self.data = torch.tensor(values, device="cuda")
        self.local = torch.zeros(1, dtype=self.data.dtype).pin_memory()

    def element(self, index):
        self.local.copy_(self.data[index : index + 1], non_blocking=True)  # <- first
        return self.local[0].item()  # <- second

    def element_when_landed(self, index):
        self.local.copy_(self.data[index : index + 1], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self.local[0].item()


def buggy():
    column = Column([7, 8, 9])
    return [column.element(index) for index in (2, 0)]


def fixed():
    column = Column([7, 8, 9])
    return [column.element_when_landed(index) for index in (2, 0)]
