"""DLPack: the consumer asks for the legacy default stream but reads on its own."""

import torch
from torch.utils import dlpack

ENTRY = "B070"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        points = torch.ones(48, device="cuda")
        torch.cuda.synchronize()
        points *= 4  # <- first
        capsule = points.__dlpack__(stream=1)
    with torch.cuda.stream(consumer):
        imported = dlpack.from_dlpack(capsule)
        total = imported.sum()  # <- second
    torch.cuda.synchronize()
    return total.item()


def fixed():
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        points = torch.ones(48, device="cuda")
        torch.cuda.synchronize()
        points *= 4
        capsule = points.__dlpack__(stream=consumer.cuda_stream)
    with torch.cuda.stream(consumer):
        imported = dlpack.from_dlpack(capsule)
        total = imported.sum()
    torch.cuda.synchronize()
    return total.item()
