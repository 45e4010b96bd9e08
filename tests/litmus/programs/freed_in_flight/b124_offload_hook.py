"""A hook puts the CPU copy of a weight back in place after the forward, while the kernel still reads the other."""

import torch

ENTRY = "B124"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


class Layer:
    def __init__(self):
        self.stored = torch.full((20, 20), 0.25).pin_memory()
        self.weight = self.stored

    def onload(self, stream):
        with torch.cuda.stream(stream):
            self.weight = self.stored.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)


def buggy():
    load, layer = torch.cuda.Stream(), Layer()
    x = torch.ones(2, 20, device="cuda")
    layer.onload(load)
    x = x @ layer.weight  # <- first
    layer.weight = layer.stored  # <- second
    layer.onload(load)
    torch.cuda.synchronize()
    return x.sum().item()


def fixed():
    load, layer = torch.cuda.Stream(), Layer()
    x = torch.ones(2, 20, device="cuda")
    layer.onload(load)
    x = x @ layer.weight
    torch.cuda.current_stream().synchronize()
    layer.weight = layer.stored
    layer.onload(load)
    torch.cuda.synchronize()
    return x.sum().item()
