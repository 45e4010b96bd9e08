"""A run's buffer returns to a pool with no stream noted, and a concurrent run writes to it."""

import torch

ENTRY = "B126"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


class Pool:
    def __init__(self):
        self.free: list[tuple[torch.Tensor, torch.cuda.Event | None]] = [(torch.zeros(64, device="cuda"), None)]
        torch.cuda.synchronize()

    def take(self):
        buffer, released = self.free.pop()
        if released is not None:
            torch.cuda.current_stream().wait_event(released)
        return buffer


def buggy():
    pool, runs = Pool(), [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.cuda.stream(runs[0]):
        buffer = pool.take()
        left = buffer.sum()  # <- first
        pool.free.append((buffer, None))
    with torch.cuda.stream(runs[1]):
        right = pool.take().fill_(2)  # <- second
    torch.cuda.synchronize()
    return left.item(), right.sum().item()


def fixed():
    pool, runs = Pool(), [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.cuda.stream(runs[0]):
        buffer = pool.take()
        left = buffer.sum()
        pool.free.append((buffer, runs[0].record_event()))
    with torch.cuda.stream(runs[1]):
        right = pool.take().fill_(2)
    torch.cuda.synchronize()
    return left.item(), right.sum().item()
