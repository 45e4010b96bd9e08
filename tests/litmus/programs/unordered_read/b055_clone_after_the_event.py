"""Activation offload: a clone is queued on the transfer stream after the event that is waited for."""

import torch

ENTRY = "B055"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    main, transfer = torch.cuda.current_stream(), torch.cuda.Stream()
    activation = torch.arange(256.0, device="cuda")
    transfer.wait_stream(main)
    with torch.cuda.stream(transfer):
        head = activation[:128] + 1
        done = transfer.record_event()
        tail = activation[128:].clone()  # <- first
    main.wait_event(done)
    gradient = head * 2
    gradient += tail  # <- second
    result = gradient.cpu()
    torch.cuda.synchronize()
    return result


def fixed():
    main, transfer = torch.cuda.current_stream(), torch.cuda.Stream()
    activation = torch.arange(256.0, device="cuda")
    transfer.wait_stream(main)
    with torch.cuda.stream(transfer):
        head = activation[:128] + 1
        tail = activation[128:].clone()
        done = transfer.record_event()
    main.wait_event(done)
    gradient = head * 2
    gradient += tail
    result = gradient.cpu()
    torch.cuda.synchronize()
    return result
