"""A side stream waits for the main one before it starts, and the main one for it before it goes on."""

from __future__ import annotations

import torch


def program():
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    weights = torch.ones(4, device="cuda")
    for _ in range(3):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            weights.mul_(2)
        main.wait_stream(side)
        weights.add_(1)
    return weights.tolist()
