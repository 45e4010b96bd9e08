"""The memory of an audio callback is queued without a copy and refilled with the next block.

alphacep/vosk-api#444, sonos/pyFLAC PR 4: a slow consumer hears blocks twice.
"""

from __future__ import annotations

import queue

import numpy as np
import torch

ENTRY = "B140"
KIND = "recycled"
SCHEDULES = "lazy"


class SoundCard:
    def __init__(self, callback):
        self.block, self.callback = np.zeros(4, np.int16), callback

    def play(self, blocks):
        for number in range(blocks):
            np.copyto(self.block, number)  # <- second
            self.callback(self.block)


def record(keep):
    heard: queue.Queue[torch.Tensor] = queue.Queue()
    SoundCard(lambda block: heard.put(keep(block))).play(3)
    return [heard.get().tolist() for _ in range(3)]


def as_view(block):
    return torch.from_numpy(block)  # <- first


def buggy():
    return record(as_view)


def fixed():
    return record(torch.tensor)
