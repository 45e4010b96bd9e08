"""KV blocks of a finished request go to the next one while they are still being sent."""

import torch

ENTRY = "B098"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    send = torch.cuda.Stream()
    cache = torch.zeros(6, 32, device="cuda")
    remote = torch.zeros(2, 32, pin_memory=True)
    pool = [3, 4]
    finished = [pool.pop(), pool.pop()]
    for block in finished:
        cache[block] = 1.5
    send.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(send):
        for index, block in enumerate(finished):
            remote[index].copy_(cache[block], non_blocking=True)  # <- first
    pool.extend(finished)
    cache[pool.pop()] = -1.0  # <- second
    torch.cuda.synchronize()
    return remote.tolist()


def fixed():
    send = torch.cuda.Stream()
    cache = torch.zeros(6, 32, device="cuda")
    remote = torch.zeros(2, 32, pin_memory=True)
    pool = [3, 4]
    finished = [pool.pop(), pool.pop()]
    for block in finished:
        cache[block] = 1.5
    send.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(send):
        for index, block in enumerate(finished):
            remote[index].copy_(cache[block], non_blocking=True)
    pool.extend(finished)
    torch.cuda.current_stream().wait_event(send.record_event())
    cache[pool.pop()] = -1.0
    torch.cuda.synchronize()
    return remote.tolist()
