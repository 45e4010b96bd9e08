"""Two streams set the inputs and record the same event; waiting for it orders only the second."""

import torch

ENTRY = "B095"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    filled = torch.cuda.Event()
    inputs = torch.zeros(2, 100, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        inputs[0].fill_(1)  # <- first
        filled.record()
    with torch.cuda.stream(second):
        inputs[1].fill_(2)
        filled.record()
    torch.cuda.current_stream().wait_event(filled)
    reduced = inputs.sum(dim=0)  # <- second
    torch.cuda.synchronize()
    return reduced.tolist()


def fixed():
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    inputs = torch.zeros(2, 100, device="cuda")
    torch.cuda.synchronize()
    for index, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            inputs[index].fill_(index + 1)
            filled = torch.cuda.Event()
            filled.record()
        torch.cuda.current_stream().wait_event(filled)
    reduced = inputs.sum(dim=0)
    torch.cuda.synchronize()
    return reduced.tolist()
