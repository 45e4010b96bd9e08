"""A device buffer is built from a host array; the array is sorted in place afterwards.

rapidsai/rmm#313: which hidden wait makes this safe?
"""

from __future__ import annotations

import torch

ENTRY = "B042"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class DeviceBuffer:
    def __init__(self, host, stream):
        with torch.cuda.stream(stream):
            self.data = host.cuda(non_blocking=True)  # <- first
        self.stream = stream


def build(*, wait):
    host = torch.tensor([3, 1, 2]).pin_memory()
    buffer = DeviceBuffer(host, torch.cuda.Stream())
    if wait:
        buffer.stream.synchronize()
    host[:] = host.sort().values  # <- second
    buffer.stream.synchronize()
    return buffer.data.tolist()


def buggy():
    return build(wait=False)


def fixed():
    return build(wait=True)
