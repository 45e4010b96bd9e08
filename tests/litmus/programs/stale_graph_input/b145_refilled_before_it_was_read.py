"""A static input is refilled on an upload stream that does not wait for the replay to have read it."""

import torch

ENTRY = "B145"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    upload, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    image = torch.zeros(20, device="cuda")
    with torch.cuda.graph(graph):
        logits = image + 1
    torch.cuda.synchronize()
    answers = []
    for number in range(3):
        frame = torch.full((20,), float(number)).pin_memory()
        with torch.cuda.stream(upload):
            image.copy_(frame, non_blocking=True)  # <- second
        torch.cuda.current_stream().wait_stream(upload)
        graph.replay()  # <- first
        answers.append(logits.clone())
    torch.cuda.synchronize()
    return [answer.sum().item() for answer in answers]


def fixed():
    upload, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    image = torch.zeros(20, device="cuda")
    with torch.cuda.graph(graph):
        logits = image + 1
    torch.cuda.synchronize()
    answers = []
    for number in range(3):
        frame = torch.full((20,), float(number)).pin_memory()
        upload.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(upload):
            image.copy_(frame, non_blocking=True)
        torch.cuda.current_stream().wait_stream(upload)
        graph.replay()
        answers.append(logits.clone())
    torch.cuda.synchronize()
    return [answer.sum().item() for answer in answers]
