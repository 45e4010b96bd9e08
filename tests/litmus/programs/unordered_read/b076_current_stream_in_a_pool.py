"""The current stream belongs to a thread: a pool's thread works on the default stream."""

from concurrent.futures import ThreadPoolExecutor

import torch

ENTRY = "B076"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    stream = torch.cuda.Stream()
    with ThreadPoolExecutor(1) as pool, torch.cuda.stream(stream):
        histogram = torch.ones(4, 32, device="cuda")  # <- first
        reduced = pool.submit(lambda: histogram.sum(dim=0)).result()  # <- second
        torch.cuda.synchronize()
        return reduced.tolist()


def fixed():
    stream = torch.cuda.Stream()

    def on_the_callers_stream(histogram):
        with torch.cuda.stream(stream):
            return histogram.sum(dim=0)

    with ThreadPoolExecutor(1) as pool, torch.cuda.stream(stream):
        histogram = torch.ones(4, 32, device="cuda")
        reduced = pool.submit(on_the_callers_stream, histogram).result()
        torch.cuda.synchronize()
        return reduced.tolist()
