"""A background save packs the groups of a cache; the event of each is used one too late."""

import torch

ENTRY = "B088"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    pack = torch.cuda.Stream()
    cache = torch.zeros(3, 20, device="cuda")
    torch.cuda.synchronize()
    written = [torch.cuda.current_stream().record_event()]
    for group in range(3):
        cache[group].fill_(group + 1.0)  # <- first
        written.append(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(pack):
        packed = []
        for group in range(3):
            pack.wait_event(written[group])
            packed.append(cache[group].clone())  # <- second
    torch.cuda.synchronize()
    return torch.stack(packed).tolist()


def fixed():
    pack = torch.cuda.Stream()
    cache = torch.zeros(3, 20, device="cuda")
    torch.cuda.synchronize()
    written = [torch.cuda.current_stream().record_event()]
    for group in range(3):
        cache[group].fill_(group + 1.0)
        written.append(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(pack):
        packed = []
        for group in range(3):
            pack.wait_event(written[group + 1])
            packed.append(cache[group].clone())
    torch.cuda.synchronize()
    return torch.stack(packed).tolist()
