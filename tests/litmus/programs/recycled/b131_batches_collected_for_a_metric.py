"""An iterator owns its output tensors; a metric collects them and sees the last batch many times.

NVIDIA/DALI#1375: a note on ownership was added to the documents.
"""

from __future__ import annotations

import numpy as np

ENTRY = "B131"
KIND = "recycled"
SCHEDULES = "lazy"


class Loader:
    def __init__(self, batches):
        self.memory, self.batches, self.number = np.zeros(4, np.float32), batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == self.batches:
            raise StopIteration
        self.memory[:] = self.number  # <- second
        self.number += 1
        return self.memory


def buggy():
    scores = list(Loader(3))  # <- first
    return float(np.std(scores))


def fixed():
    scores = [batch.copy() for batch in Loader(3)]
    return float(np.std(scores))
