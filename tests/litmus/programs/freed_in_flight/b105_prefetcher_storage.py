"""A prefetcher's batch is dropped by the consumer: the next upload may take memory that is still read."""

import torch

ENTRY = "B105"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


class Prefetcher:
    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()

    def fetch(self):
        with torch.cuda.stream(self.stream):
            return next(self.batches).pin_memory().to("cuda", non_blocking=True)


def buggy():
    prefetcher = Prefetcher(torch.ones(3, 1000) * torch.arange(3.0)[:, None])
    losses = []
    for _ in range(3):
        batch = prefetcher.fetch()
        torch.cuda.current_stream().wait_stream(prefetcher.stream)
        losses.append(batch.mean())  # <- first
        batch = None  # <- second
    torch.cuda.synchronize()
    return [loss.item() for loss in losses]


def fixed():
    prefetcher = Prefetcher(torch.ones(3, 1000) * torch.arange(3.0)[:, None])
    losses = []
    for _ in range(3):
        batch = prefetcher.fetch()
        torch.cuda.current_stream().wait_stream(prefetcher.stream)
        batch.record_stream(torch.cuda.current_stream())
        losses.append(batch.mean())
        batch = None
    torch.cuda.synchronize()
    return [loss.item() for loss in losses]
