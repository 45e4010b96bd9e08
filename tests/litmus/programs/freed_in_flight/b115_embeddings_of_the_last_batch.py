"""Embeddings come from another stream; the name is bound to the next ones while the last are in use."""

import torch

ENTRY = "B115"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def embed(stream, step):
    with torch.cuda.stream(stream):
        return torch.full((300,), float(step), device="cuda")


def buggy():
    sparse = torch.cuda.Stream()
    total = torch.zeros((), device="cuda")
    embeddings = embed(sparse, 0)
    for step in range(1, 3):
        torch.cuda.current_stream().wait_stream(sparse)
        total += embeddings.sum()  # <- first
        embeddings = embed(sparse, step)  # <- second
    torch.cuda.synchronize()
    return total.item()


def fixed():
    sparse = torch.cuda.Stream()
    total = torch.zeros((), device="cuda")
    embeddings = embed(sparse, 0)
    for step in range(1, 3):
        torch.cuda.current_stream().wait_stream(sparse)
        embeddings.record_stream(torch.cuda.current_stream())
        total += embeddings.sum()
        embeddings = embed(sparse, step)
    torch.cuda.synchronize()
    return total.item()
