"""A library launches on its stream, waits there for the caller's inputs, and returns without the way back."""

import torch

ENTRY = "B086"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


class Library:
    def __init__(self):
        self.stream = torch.cuda.Stream()

    def scope(self):
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)


def buggy():
    library = Library()
    positions = torch.arange(30.0, device="cuda").reshape(10, 3)
    with library.scope():
        energies = (positions**2).sum(dim=1)  # <- first
    total = energies.sum()  # <- second
    torch.cuda.synchronize()
    return total.item()


def fixed():
    library = Library()
    positions = torch.arange(30.0, device="cuda").reshape(10, 3)
    with library.scope():
        energies = (positions**2).sum(dim=1)
    torch.cuda.current_stream().wait_stream(library.stream)
    total = energies.sum()
    torch.cuda.synchronize()
    return total.item()
