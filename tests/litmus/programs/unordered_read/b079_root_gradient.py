"""The root gradient is filled on one stream, backward() runs on another."""

import torch

ENTRY = "B079"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    side = torch.cuda.Stream()
    x = torch.ones(32, device="cuda", requires_grad=True)
    y = x * 3
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        root = torch.full_like(y, 2.0)  # <- first
    y.backward(root)  # <- second
    torch.cuda.synchronize()
    assert x.grad is not None
    return x.grad.tolist()


def fixed():
    side = torch.cuda.Stream()
    x = torch.ones(32, device="cuda", requires_grad=True)
    y = x * 3
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        root = torch.full_like(y, 2.0)
    torch.cuda.current_stream().wait_stream(side)
    y.backward(root)
    torch.cuda.synchronize()
    assert x.grad is not None
    return x.grad.tolist()
