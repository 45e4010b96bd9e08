"""A decoded surface is valid until the next call of the decoder; the first frame is kept for a difference.

NVIDIA/VideoProcessingFramework#20.
"""

from __future__ import annotations

import torch

ENTRY = "B135"
KIND = "recycled"
SCHEDULES = "lazy"


class Decoder:
    def __init__(self):
        self.surface = bytearray(8)
        self.number = 0

    def decode(self):
        self.number += 1
        self.surface[:] = bytes([self.number]) * 8  # <- second
        return torch.frombuffer(self.surface, dtype=torch.uint8)  # <- first


def buggy():
    decoder = Decoder()
    before, after = decoder.decode(), decoder.decode()
    return int((after - before).sum())


def fixed():
    decoder = Decoder()
    before, after = decoder.decode().clone(), decoder.decode()
    return int((after - before).sum())
