"""A decoder's surface is wrapped as a tensor without a copy while the converter's stream still writes to it."""

import torch

ENTRY = "B085"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Surface:
    def __init__(self, memory):
        self.memory = memory

    @property
    def __cuda_array_interface__(self):
        return {"shape": (6, 8), "typestr": "<f4", "data": (self.memory.data_ptr(), False), "version": 3}


def buggy():
    converter = torch.cuda.Stream()
    memory = torch.zeros(6, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(converter):
        memory.fill_(128)  # <- first
    frame = torch.as_tensor(Surface(memory), device="cuda")
    brightness = frame.mean()  # <- second
    torch.cuda.synchronize()
    return brightness.item()


def fixed():
    converter = torch.cuda.Stream()
    memory = torch.zeros(6, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(converter):
        memory.fill_(128)
    converter.synchronize()
    frame = torch.as_tensor(Surface(memory), device="cuda")
    brightness = frame.mean()
    torch.cuda.synchronize()
    return brightness.item()
