"""A reloaded activation is deleted while the compute stream still uses a view of it."""

import torch

ENTRY = "B112"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    reload = torch.cuda.Stream()
    saved = torch.rand(4, 256).pin_memory()
    with torch.cuda.stream(reload):
        activation = saved.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(reload)
    view = activation.view(2, 512)[1]
    gradient = view * 2  # <- first
    del activation
    del view  # <- second
    torch.cuda.synchronize()
    return gradient.cpu()


def fixed():
    reload = torch.cuda.Stream()
    saved = torch.rand(4, 256).pin_memory()
    with torch.cuda.stream(reload):
        activation = saved.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(reload)
    activation.record_stream(torch.cuda.current_stream())
    view = activation.view(2, 512)[1]
    gradient = view * 2
    del activation
    del view
    torch.cuda.synchronize()
    return gradient.cpu()
