"""A request's slot is taken by the next one while the overlapped forward still reads its row."""

import torch

ENTRY = "B097"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    forward = torch.cuda.Stream()
    rows = torch.zeros(4, 8, dtype=torch.int64, device="cuda")
    free = [0, 1, 2, 3]
    slot = free.pop(0)
    rows[slot] = 11
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        tokens = rows[slot] + 1  # <- first
    free.insert(0, slot)
    rows[free.pop(0)].fill_(99)  # <- second
    torch.cuda.synchronize()
    return tokens.tolist()


def fixed():
    forward = torch.cuda.Stream()
    rows = torch.zeros(4, 8, dtype=torch.int64, device="cuda")
    free = [0, 1, 2, 3]
    slot = free.pop(0)
    rows[slot] = 11
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        tokens = rows[slot] + 1
        done = forward.record_event()
    rows[free.pop(0)].fill_(99)
    done.synchronize()
    free.insert(0, slot)
    torch.cuda.synchronize()
    return tokens.tolist()
