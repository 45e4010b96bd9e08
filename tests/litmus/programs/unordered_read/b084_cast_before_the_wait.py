"""A weight is cast on the compute stream before that stream waits for its upload."""

import torch

ENTRY = "B084"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    offload = torch.cuda.Stream()
    weight = torch.full((32, 32), 0.5).pin_memory()
    x = torch.ones(4, 32, dtype=torch.bfloat16, device="cuda")
    with torch.cuda.stream(offload):
        uploaded = weight.to("cuda", non_blocking=True)  # <- first
    cast = uploaded.to(torch.bfloat16)  # <- second
    torch.cuda.current_stream().wait_stream(offload)
    image = (x @ cast).float().cpu()
    torch.cuda.synchronize()
    return image


def fixed():
    offload = torch.cuda.Stream()
    weight = torch.full((32, 32), 0.5).pin_memory()
    x = torch.ones(4, 32, dtype=torch.bfloat16, device="cuda")
    with torch.cuda.stream(offload):
        uploaded = weight.to("cuda", non_blocking=True)
        cast = uploaded.to(torch.bfloat16)
    torch.cuda.current_stream().wait_stream(offload)
    image = (x @ cast).float().cpu()
    torch.cuda.synchronize()
    return image
