"""A batch is copied out on the user's stream; nothing keeps the pipeline from writing its buffer again.

NVIDIA/DALI PR 3950: iterators had to block.
"""

from __future__ import annotations

import torch

ENTRY = "B130"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


class Pipeline:
    def __init__(self):
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            self.output = torch.zeros(4, device="cuda")

    def run(self, number):
        with torch.cuda.stream(self.stream):
            self.output.fill_(number)  # <- second
        return self.stream.record_event()

    def copy_to_external(self, target, user):
        target.copy_(self.output, non_blocking=True)  # <- first
        return user.record_event()


def train(*, order_recycling):
    pipeline, user = Pipeline(), torch.cuda.current_stream()
    batches = []
    for number in range(2):
        user.wait_event(pipeline.run(number))
        batch = torch.empty(4, device="cuda")
        copied = pipeline.copy_to_external(batch, user)
        if order_recycling:
            pipeline.stream.wait_event(copied)
        batches.append(batch)
    torch.cuda.synchronize()
    return torch.stack(batches).cpu()


def buggy():
    return train(order_recycling=False)


def fixed():
    return train(order_recycling=True)
