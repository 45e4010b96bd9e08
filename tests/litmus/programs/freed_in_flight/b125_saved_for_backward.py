"""A weight made on the transfer stream is saved for backward; dropping the loss frees it too early."""

import torch

ENTRY = "B125"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    transfer = torch.cuda.Stream()
    stored = torch.full((16, 8), 0.5).pin_memory()
    x = torch.ones(4, 16, device="cuda", requires_grad=True)
    with torch.cuda.stream(transfer):
        weight = stored.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(transfer)
    loss = (x @ weight).sum()
    del weight
    loss.backward(retain_graph=True)  # <- first
    del loss  # <- second
    torch.cuda.synchronize()
    assert x.grad is not None
    return x.grad.tolist()


def fixed():
    transfer = torch.cuda.Stream()
    stored = torch.full((16, 8), 0.5).pin_memory()
    x = torch.ones(4, 16, device="cuda", requires_grad=True)
    with torch.cuda.stream(transfer):
        weight = stored.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(transfer)
    loss = (x @ weight).sum()
    weight.record_stream(torch.cuda.current_stream())
    del weight
    loss.backward(retain_graph=True)
    del loss
    torch.cuda.synchronize()
    assert x.grad is not None
    return x.grad.tolist()
