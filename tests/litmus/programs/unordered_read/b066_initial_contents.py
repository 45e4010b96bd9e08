"""A buffer gets its initial contents on the default stream; a worker stream uses it at once."""

import torch

ENTRY = "B066"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    workers = [torch.cuda.Stream() for _ in range(2)]
    accumulator = torch.full((64,), 10.0, device="cuda")  # <- first
    workers[1].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(workers[1]):
        right = accumulator[32:] * 2
    with torch.cuda.stream(workers[0]):
        left = accumulator[:32] * 2  # <- second
    torch.cuda.synchronize()
    return (left + right).sum().item()


def fixed():
    workers = [torch.cuda.Stream() for _ in range(2)]
    accumulator = torch.full((64,), 10.0, device="cuda")
    for worker in workers:
        worker.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(workers[1]):
        right = accumulator[32:] * 2
    with torch.cuda.stream(workers[0]):
        left = accumulator[:32] * 2
    torch.cuda.synchronize()
    return (left + right).sum().item()
