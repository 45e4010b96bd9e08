"""A scheduler's thread advances the lengths that a worker's thread has just begun to upload.

sgl-project/sglang PR 1712: the lengths are copied at the hand-off now.
"""

from __future__ import annotations

import queue
import threading

import torch

ENTRY = "B043"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


def work(todo, done):
    while (lengths := todo.get()) is not None:
        done.put(lengths.to("cuda", non_blocking=True))  # <- first


def serve(*, own_copy):
    todo: queue.Queue[torch.Tensor | None] = queue.Queue()
    done: queue.Queue[torch.Tensor] = queue.Queue()
    worker = threading.Thread(target=work, args=(todo, done), daemon=True)
    worker.start()
    lengths = torch.tensor([4, 9]).pin_memory()
    steps = []
    for _ in range(2):
        todo.put(lengths.clone().pin_memory() if own_copy else lengths)
        steps.append(done.get())
        lengths.add_(1)  # <- second
    todo.put(None)
    worker.join()
    return torch.stack(steps).cpu()


def buggy():
    return serve(own_copy=False)


def fixed():
    return serve(own_copy=True)
