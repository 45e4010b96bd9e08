"""KV offload: blocks are stored as soon as the scheduler calls them finished, not when the device has."""

import torch

ENTRY = "B059"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    store = torch.cuda.Stream()
    cache = torch.zeros(8, 16, 4, device="cuda")
    host = torch.zeros(8, 16, 4, pin_memory=True)
    torch.cuda.synchronize()
    confirmed = []
    for block in range(2):
        cache[block] = torch.ones(16, 4, device="cuda") * block  # <- first
        confirmed.append(block)
    with torch.cuda.stream(store):
        for block in confirmed:
            host[block].copy_(cache[block], non_blocking=True)  # <- second
    torch.cuda.synchronize()
    return host.sum().item()


def fixed():
    store = torch.cuda.Stream()
    cache = torch.zeros(8, 16, 4, device="cuda")
    host = torch.zeros(8, 16, 4, pin_memory=True)
    torch.cuda.synchronize()
    confirmed = []
    for block in range(2):
        cache[block] = torch.ones(16, 4, device="cuda") * block
        confirmed.append(block)
    computed = torch.cuda.current_stream().record_event()
    store.wait_event(computed)
    with torch.cuda.stream(store):
        for block in confirmed:
            host[block].copy_(cache[block], non_blocking=True)
    torch.cuda.synchronize()
    return host.sum().item()
