"""A server imports a raw capsule, which names no stream, while the model still writes."""

import torch
from torch.utils import dlpack

ENTRY = "B072"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    model, server = torch.cuda.Stream(), torch.cuda.Stream()
    logits = torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(model):
        logits.fill_(0.25)  # <- first
        capsule = dlpack.to_dlpack(logits)  # type: ignore[attr-defined] # public, and not exported
    with torch.cuda.stream(server):
        response = dlpack.from_dlpack(capsule).cpu()  # <- second
    torch.cuda.synchronize()
    return response


def fixed():
    model, server = torch.cuda.Stream(), torch.cuda.Stream()
    logits = torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(model):
        logits.fill_(0.25)
        capsule = dlpack.to_dlpack(logits)  # type: ignore[attr-defined] # public, and not exported
    torch.cuda.synchronize()
    with torch.cuda.stream(server):
        response = dlpack.from_dlpack(capsule).cpu()
    torch.cuda.synchronize()
    return response
