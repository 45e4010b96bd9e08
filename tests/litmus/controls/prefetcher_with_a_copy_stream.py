"""The usual prefetcher: the next batch goes up on a side stream while the current one is used."""

from __future__ import annotations

import torch


class Prefetcher:
    def __init__(self, batches):
        self.batches, self.stream = iter(batches), torch.cuda.Stream()
        self.following = None
        self.preload()

    def preload(self):
        batch = next(self.batches, None)
        with torch.cuda.stream(self.stream):
            self.following = None if batch is None else batch.to("cuda", non_blocking=True)

    def __iter__(self):
        while self.following is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.following
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


def program():
    total = torch.zeros((), device="cuda")
    for batch in Prefetcher(torch.full((3,), float(number)).pin_memory() for number in range(4)):
        total += batch.sum()
    return total.item()
