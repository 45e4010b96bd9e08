"""A server thread sends the state to a peer while the optimiser steps.

meta-pytorch/torchft PR 245: locks and clones are proposed.
"""

from __future__ import annotations

import io
import queue
import threading

import torch

ENTRY = "B170"
KIND = "moving-snapshot"
SCHEDULES = "lazy"


def serve(requests, sent):
    while (state := requests.get()) is not None:
        file = io.BytesIO()
        torch.save(state, file)
        sent.put(file.getvalue())


def train(*, clone):
    requests: queue.Queue[dict[str, torch.Tensor] | None] = queue.Queue()
    sent: queue.Queue[bytes] = queue.Queue()
    server = threading.Thread(target=serve, args=(requests, sent), daemon=True)
    server.start()
    weights = torch.ones(4, requires_grad=True)
    optimiser = torch.optim.SGD([weights], lr=0.1)
    weights.square().sum().backward()
    requests.put({"weights": weights.detach().clone() if clone else weights.detach()})  # <- first
    optimiser.step()  # <- second
    requests.put(None)
    server.join()
    return sent.get()


def buggy():
    return train(clone=False)


def fixed():
    return train(clone=True)
