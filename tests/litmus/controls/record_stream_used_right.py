"""A tensor that a side stream still reads is dropped; the allocator was told of that stream."""

from __future__ import annotations

import torch


def program():
    side = torch.cuda.Stream()
    sums = torch.zeros(3, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    for step in range(3):
        part = torch.full((16,), float(step), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sums[step] = part.sum()
        part.record_stream(side)
        del part
    torch.cuda.current_stream().wait_stream(side)
    return sums.tolist()
