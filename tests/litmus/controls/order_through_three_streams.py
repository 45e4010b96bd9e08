"""Order goes from stream to stream to stream to host, and each step is an event."""

from __future__ import annotations

import torch


def program():
    upload, compute, download = (torch.cuda.Stream() for _ in range(3))
    host = torch.arange(4.0).pin_memory()
    result = torch.empty(4, pin_memory=True)
    with torch.cuda.stream(upload):
        data = host.to("cuda", non_blocking=True)
    compute.wait_stream(upload)
    with torch.cuda.stream(compute):
        data.mul_(3)
    download.wait_stream(compute)
    with torch.cuda.stream(download):
        result.copy_(data, non_blocking=True)
    download.synchronize()
    host.zero_()
    return result.sum().item()
