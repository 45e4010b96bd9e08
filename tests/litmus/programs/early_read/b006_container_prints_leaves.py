"""A container moves its leaves without waiting and is printed right after it was built.

pytorch/tensordict#725: printing the source first hides it, since printing waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ENTRY = "B006"
KIND = "early-read"
SCHEDULES = "lazy, starve"


@dataclass(repr=False)
class Container:
    leaves: dict[str, torch.Tensor]

    def __repr__(self):
        return ", ".join(f"{name}={leaf!r}" for name, leaf in self.leaves.items())  # <- second


def on_host(leaves, *, wait):
    moved = {name: leaf.to("cpu", non_blocking=True) for name, leaf in leaves.items()}  # <- first
    if wait:
        torch.cuda.synchronize()
    return Container(moved)


def leaves():
    return {"reward": torch.ones(3, device="cuda"), "done": torch.zeros(2, device="cuda")}


def buggy():
    return repr(on_host(leaves(), wait=False))


def fixed():
    return repr(on_host(leaves(), wait=True))
