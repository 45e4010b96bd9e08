"""A blocking download inside a side stream waits for that stream; the array may be read at once."""

from __future__ import annotations

import torch


def program():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        array = torch.ones(4, device="cuda").cumsum(0).cpu().numpy()
    array *= 2
    return float(array.sum())
