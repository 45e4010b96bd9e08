"""A prefetcher remembers a stream of its own as the default one and makes that wait."""

import torch

ENTRY = "B077"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Prefetcher:
    def __init__(self, compute):
        self.compute = compute
        self.side = torch.cuda.Stream()
        self.index = 0

    def handover(self):
        self.compute.wait_stream(self.side)
        self.index += 1


def buggy():
    prefetcher = Prefetcher(torch.cuda.Stream())
    rows = torch.rand(2, 50).pin_memory()
    with torch.cuda.stream(prefetcher.side):
        embeddings = rows[prefetcher.index].to("cuda", non_blocking=True)  # <- first
    prefetcher.handover()
    score = embeddings.norm()  # <- second
    torch.cuda.synchronize()
    return score.item()


def fixed():
    prefetcher = Prefetcher(torch.cuda.current_stream())
    rows = torch.rand(2, 50).pin_memory()
    with torch.cuda.stream(prefetcher.side):
        embeddings = rows[prefetcher.index].to("cuda", non_blocking=True)
    prefetcher.handover()
    score = embeddings.norm()
    torch.cuda.synchronize()
    return score.item()
