"""A temporary weight made on the offload stream goes out of scope there before the compute stream used it."""

import torch

ENTRY = "B122"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    offload = torch.cuda.Stream()
    weights = [torch.full((24, 24), 0.5).pin_memory() for _ in range(2)]
    x = torch.ones(3, 24, device="cuda")
    for weight in weights:
        with torch.cuda.stream(offload):
            temporary = weight.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(offload)
        x = torch.nn.functional.linear(x, temporary)  # <- first
        del temporary  # <- second
    image = x.cpu()
    torch.cuda.synchronize()
    return image


def fixed():
    offload = torch.cuda.Stream()
    weights = [torch.full((24, 24), 0.5).pin_memory() for _ in range(2)]
    x = torch.ones(3, 24, device="cuda")
    for weight in weights:
        with torch.cuda.stream(offload):
            temporary = weight.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(offload)
        x = torch.nn.functional.linear(x, temporary)
        offload.wait_stream(torch.cuda.current_stream())
        del temporary
    image = x.cpu()
    torch.cuda.synchronize()
    return image
