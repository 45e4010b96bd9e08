"""A thread gets the tensor together with its event and waits before it reads."""

from __future__ import annotations

import queue
import threading

import torch


def write(todo, rows):
    while (item := todo.get()) is not None:
        event, host = item
        event.synchronize()
        rows.extend(host.tolist())


def program():
    todo: queue.Queue[tuple[torch.cuda.Event, torch.Tensor] | None] = queue.Queue()
    rows: list[float] = []
    writer = threading.Thread(target=write, args=(todo, rows), daemon=True)
    writer.start()
    for step in range(3):
        host = torch.full((2,), float(step), device="cuda").to("cpu", non_blocking=True)
        todo.put((torch.cuda.current_stream().record_event(), host))
    todo.put(None)
    writer.join()
    return rows
