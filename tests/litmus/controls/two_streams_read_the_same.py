"""Two streams read one tensor at the same time; neither writes it."""

from __future__ import annotations

import torch


def program():
    shared = torch.arange(6.0, device="cuda")
    left, right = torch.cuda.Stream(), torch.cuda.Stream()
    sums = []
    for stream in (left, right):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            sums.append(shared.sum())
    torch.cuda.synchronize()
    return [one.item() for one in sums]
