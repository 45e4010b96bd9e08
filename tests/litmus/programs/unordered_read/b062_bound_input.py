"""A runtime runs on its own stream; the input bound to it is filled on the application's stream."""

import torch

ENTRY = "B062"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Runtime:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.inputs = {}
        self.output = torch.zeros(32, device="cuda")
        torch.cuda.synchronize()

    def bind(self, name, tensor):
        self.inputs[name] = tensor


def buggy():
    runtime = Runtime()
    image = torch.empty(32, device="cuda")
    runtime.bind("image", image)
    image.copy_(torch.full((32,), 7.0).pin_memory(), non_blocking=True)  # <- first
    with torch.cuda.stream(runtime.stream):
        torch.mul(runtime.inputs["image"], 2, out=runtime.output)  # <- second
    torch.cuda.synchronize()
    return runtime.output.cpu()


def fixed():
    runtime = Runtime()
    image = torch.empty(32, device="cuda")
    runtime.bind("image", image)
    image.copy_(torch.full((32,), 7.0).pin_memory(), non_blocking=True)
    runtime.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(runtime.stream):
        torch.mul(runtime.inputs["image"], 2, out=runtime.output)
    torch.cuda.synchronize()
    return runtime.output.cpu()
