"""A search tree is rebuilt for the next query while the library's stream still walks the old one."""

import torch

ENTRY = "B128"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def build(points):
    return {"order": points.argsort(), "sorted": points.sort().values}


def buggy():
    library = torch.cuda.Stream()
    points = torch.tensor([3.0, 1.0, 2.0] * 50, device="cuda")
    sought = torch.tensor([1.5], device="cuda")
    tree = build(points)
    library.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(library):
        nearest = torch.searchsorted(tree["sorted"], sought)  # <- first
    tree = build(points + 1)  # <- second
    torch.cuda.synchronize()
    return nearest.item(), tree["sorted"].sum().item()


def fixed():
    library = torch.cuda.Stream()
    points = torch.tensor([3.0, 1.0, 2.0] * 50, device="cuda")
    sought = torch.tensor([1.5], device="cuda")
    with torch.cuda.stream(library):
        library.wait_stream(torch.cuda.default_stream())
        tree = build(points)
        nearest = torch.searchsorted(tree["sorted"], sought)
        tree = build(points + 1)
    torch.cuda.synchronize()
    return nearest.item(), tree["sorted"].sum().item()
