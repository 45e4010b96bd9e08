"""An embedding cache loads the rows of a later batch over rows that this batch still looks up."""

import torch

ENTRY = "B106"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    prefetch = torch.cuda.Stream()
    cache = torch.zeros(8, 4, device="cuda")
    ids = torch.tensor([1, 3, 5], device="cuda")
    rows = torch.full((3, 4), 6.0, device="cuda")
    torch.cuda.synchronize()
    embedded = torch.nn.functional.embedding(ids, cache)  # <- first
    with torch.cuda.stream(prefetch):
        cache.index_copy_(0, ids, rows)  # <- second
    torch.cuda.synchronize()
    return embedded.tolist()


def fixed():
    prefetch = torch.cuda.Stream()
    cache = torch.zeros(8, 4, device="cuda")
    ids = torch.tensor([1, 3, 5], device="cuda")
    rows = torch.full((3, 4), 6.0, device="cuda")
    torch.cuda.synchronize()
    embedded = torch.nn.functional.embedding(ids, cache)
    prefetch.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(prefetch):
        cache.index_copy_(0, ids, rows)
    torch.cuda.synchronize()
    return embedded.tolist()
