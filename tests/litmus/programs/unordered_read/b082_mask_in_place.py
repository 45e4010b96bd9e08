"""Expert ids are masked in place on the compute stream while the communication stream counts them."""

import torch

ENTRY = "B082"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    communication = torch.cuda.Stream()
    ids = torch.arange(64, device="cuda") % 4
    drop = torch.arange(64, device="cuda") >= 48
    torch.cuda.synchronize()
    ids.masked_fill_(drop, -1)  # <- first
    with torch.cuda.stream(communication):
        tokens = (ids >= 0).sum()  # <- second
    torch.cuda.synchronize()
    return tokens.item()


def fixed():
    communication = torch.cuda.Stream()
    ids = torch.arange(64, device="cuda") % 4
    drop = torch.arange(64, device="cuda") >= 48
    torch.cuda.synchronize()
    ids.masked_fill_(drop, -1)
    communication.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(communication):
        tokens = (ids >= 0).sum()
    torch.cuda.synchronize()
    return tokens.item()
