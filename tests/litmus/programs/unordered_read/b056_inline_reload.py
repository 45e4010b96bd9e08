"""Activation offload: a reload reads the pinned buffer that the offload is still filling."""

import torch

ENTRY = "B056"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    offload = torch.cuda.Stream()
    staging = torch.zeros(1024, pin_memory=True)
    activation = torch.randn(1024, device="cuda")
    offload.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(offload):
        staging.copy_(activation, non_blocking=True)  # <- first
    reloaded = staging.to("cuda", non_blocking=True)  # <- second
    loss = (reloaded**2).mean().item()
    torch.cuda.synchronize()
    return loss


def fixed():
    offload = torch.cuda.Stream()
    staging = torch.zeros(1024, pin_memory=True)
    activation = torch.randn(1024, device="cuda")
    offload.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(offload):
        staging.copy_(activation, non_blocking=True)
        offloaded = offload.record_event()
    torch.cuda.current_stream().wait_event(offloaded)
    reloaded = staging.to("cuda", non_blocking=True)
    loss = (reloaded**2).mean().item()
    torch.cuda.synchronize()
    return loss
