"""Waits of the host were taken out after an audit; an event between the streams carries the order.

MrNeRF/LichtFeld-Studio PR 1676.
"""

from __future__ import annotations

import torch


def program():
    side = torch.cuda.Stream()
    gradient = torch.ones(8, device="cuda")
    ready = torch.cuda.Event()
    ready.record()
    side.wait_event(ready)
    with torch.cuda.stream(side):
        densified = gradient.cumsum(0)
        done = side.record_event()
    torch.cuda.current_stream().wait_event(done)
    total = densified.sum()
    densified.record_stream(torch.cuda.current_stream())
    gradient.record_stream(side)
    return total.item()
