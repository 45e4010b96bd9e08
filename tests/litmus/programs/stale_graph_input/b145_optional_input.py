"""A graph's optional input is refilled on an upload stream after the event that the replay waits for."""

import torch

ENTRY = "B145"
KIND = "stale-graph-input"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    upload, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    scores, mask = torch.zeros(30, device="cuda"), torch.zeros(30, device="cuda")
    with torch.cuda.graph(graph):
        masked = scores + mask
    torch.cuda.synchronize()
    with torch.cuda.stream(upload):
        scores.copy_(torch.ones(30).pin_memory(), non_blocking=True)
        uploaded = upload.record_event()
        mask.copy_(torch.full((30,), -5.0).pin_memory(), non_blocking=True)  # <- first
    torch.cuda.current_stream().wait_event(uploaded)
    graph.replay()  # <- second
    torch.cuda.synchronize()
    return masked.tolist()


def fixed():
    upload, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    scores, mask = torch.zeros(30, device="cuda"), torch.zeros(30, device="cuda")
    with torch.cuda.graph(graph):
        masked = scores + mask
    torch.cuda.synchronize()
    with torch.cuda.stream(upload):
        scores.copy_(torch.ones(30).pin_memory(), non_blocking=True)
        mask.copy_(torch.full((30,), -5.0).pin_memory(), non_blocking=True)
        uploaded = upload.record_event()
    torch.cuda.current_stream().wait_event(uploaded)
    graph.replay()
    torch.cuda.synchronize()
    return masked.tolist()
