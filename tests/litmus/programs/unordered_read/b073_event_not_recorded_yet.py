"""A pipeline's output is copied on a user stream that waited for its event before it was recorded."""

import torch

ENTRY = "B073"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    pipeline, user = torch.cuda.Stream(), torch.cuda.Stream()
    ready = torch.cuda.Event()
    output = torch.zeros(4, 8, device="cuda")
    torch.cuda.synchronize()
    user.wait_event(ready)
    with torch.cuda.stream(pipeline):
        output.normal_()  # <- first
        ready.record()
    with torch.cuda.stream(user):
        batch = output.clone()  # <- second
    torch.cuda.synchronize()
    return batch.cpu()


def fixed():
    pipeline, user = torch.cuda.Stream(), torch.cuda.Stream()
    ready = torch.cuda.Event()
    output = torch.zeros(4, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(pipeline):
        output.normal_()
        ready.record()
    user.wait_event(ready)
    with torch.cuda.stream(user):
        batch = output.clone()
    torch.cuda.synchronize()
    return batch.cpu()
