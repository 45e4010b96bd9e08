"""Three scalars go up through the same word of host memory, one after the other.

pytorch/pytorch#189690: the joined result holds values of other scalars.
"""

from __future__ import annotations

import torch

ENTRY = "B045"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class ScalarAllocator:
    """Gives out the same word again as soon as it was given back."""

    def __init__(self):
        self.words = [torch.zeros(1, pin_memory=True)]

    def upload(self, value, *, wait):
        word = self.words.pop()
        word[0] = value  # <- second
        on_device = word.to("cuda", non_blocking=True)  # <- first
        if wait:
            torch.cuda.current_stream().synchronize()
        self.words.append(word)
        return on_device


def buggy():
    scalars = ScalarAllocator()
    return torch.cat([scalars.upload(value, wait=False) for value in (1.0, 2.0, 3.0)]).cpu()


def fixed():
    scalars = ScalarAllocator()
    return torch.cat([scalars.upload(value, wait=True) for value in (1.0, 2.0, 3.0)]).cpu()
