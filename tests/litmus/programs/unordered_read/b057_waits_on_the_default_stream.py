"""The reduction waits for the default stream, but the gradient was made on another."""

import torch

ENTRY = "B057"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    backward, reduce = torch.cuda.Stream(), torch.cuda.Stream()
    bucket = torch.zeros(512, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(backward):
        gradient = torch.full((512,), 3.0, device="cuda")  # <- first
        reduce.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(reduce):
            bucket += gradient / 2  # <- second
    torch.cuda.synchronize()
    return bucket.cpu()


def fixed():
    backward, reduce = torch.cuda.Stream(), torch.cuda.Stream()
    bucket = torch.zeros(512, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(backward):
        gradient = torch.full((512,), 3.0, device="cuda")
        reduce.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reduce):
            bucket += gradient / 2
    torch.cuda.synchronize()
    return bucket.cpu()
