"""Blocks are zeroed by a kernel whose persistent index buffer is uploaded again too early."""

import torch

ENTRY = "B110"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    copy = torch.cuda.Stream()
    indices = torch.zeros(2, dtype=torch.int64, device="cuda")
    cache = torch.ones(6, 10, device="cuda")
    torch.cuda.synchronize()
    indices.copy_(torch.tensor([0, 1]).pin_memory(), non_blocking=True)
    copy.wait_stream(torch.cuda.current_stream())
    cache.index_fill_(0, indices, 0)  # <- first
    with torch.cuda.stream(copy):
        indices.copy_(torch.tensor([4, 5]).pin_memory(), non_blocking=True)  # <- second
    torch.cuda.current_stream().wait_stream(copy)
    cache.index_fill_(0, indices, 0)
    torch.cuda.synchronize()
    return cache[:, 0].tolist()


def fixed():
    cache = torch.ones(6, 10, device="cuda")
    torch.cuda.synchronize()
    for blocks in ([0, 1], [4, 5]):
        indices = torch.tensor(blocks).pin_memory().to("cuda", non_blocking=True)
        cache.index_fill_(0, indices, 0)
    torch.cuda.synchronize()
    return cache[:, 0].tolist()
