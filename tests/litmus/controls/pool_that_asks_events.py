"""A pool of pinned buffers gives one out again only when its event says that the copy is done."""

from __future__ import annotations

import torch


class Pool:
    def __init__(self):
        self.used: list[tuple[torch.cuda.Event, torch.Tensor]] = []

    def take(self):
        for index, (event, _) in enumerate(self.used):
            if event.query():
                return self.used.pop(index)[1]
        return torch.empty(4, pin_memory=True)

    def upload(self, buffer):
        on_device = buffer.to("cuda", non_blocking=True)
        self.used.append((torch.cuda.current_stream().record_event(), buffer))
        return on_device


def program():
    pool, batches = Pool(), []
    for step in range(8):
        batches.append(pool.upload(pool.take().fill_(step)))
        if step % 3 == 2:
            batches[-1].sum().item()
    return torch.stack(batches).sum().item()
