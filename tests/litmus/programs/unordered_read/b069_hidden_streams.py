"""A consumer computes on streams of its own; the exporter orders only the first of them."""

import torch

ENTRY = "B069"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Consumer:
    def __init__(self):
        self.streams = [torch.cuda.Stream() for _ in range(3)]

    def on(self, index):
        return torch.cuda.stream(self.streams[index])


def buggy():
    consumer = Consumer()
    image = torch.rand(32, 32, device="cuda")  # <- first
    consumer.streams[0].wait_stream(torch.cuda.current_stream())
    with consumer.on(0):
        mean = image.mean()
    with consumer.on(2):
        summary = image.amax()  # <- second
    torch.cuda.synchronize()
    return mean.item(), summary.item()


def fixed():
    consumer = Consumer()
    image = torch.rand(32, 32, device="cuda")
    torch.cuda.current_stream().synchronize()
    with consumer.on(0):
        mean = image.mean()
    with consumer.on(2):
        summary = image.amax()
    torch.cuda.synchronize()
    return mean.item(), summary.item()
