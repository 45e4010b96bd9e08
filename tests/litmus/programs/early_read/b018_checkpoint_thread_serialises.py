"""A background thread serialises a state whose copies to the CPU nobody waited for.

NVIDIA/Megatron-LM#833: no wait of a stream or event lies on the path.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import torch

ENTRY = "B018"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def serialise(state):
    file = io.BytesIO()
    torch.save(state, file)  # <- second
    return len(file.getvalue())


def save(model, *, wait):
    staged = {}
    for name, tensor in model.state_dict().items():
        staged[name] = tensor.to("cpu", non_blocking=True)  # <- first
    if wait:
        torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as writer:
        return writer.submit(serialise, staged).result()


def buggy():
    return save(torch.nn.Linear(3, 2).cuda(), wait=False)


def fixed():
    return save(torch.nn.Linear(3, 2).cuda(), wait=True)
