"""A plugin queues the copies of its outputs on the consumer's stream and lets the pipeline run on.

NVIDIA/DALI PR 3547: a later iteration overtakes the copies. Cured by one wait after the last of them.
"""

from __future__ import annotations

import torch

ENTRY = "B143"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"


class Pipeline:
    def __init__(self):
        self.outputs = [torch.zeros(4, pin_memory=True), torch.zeros(2, pin_memory=True)]

    def run(self, number):
        for output in self.outputs:
            output.fill_(number)  # <- second
        return self.outputs


def consume(pipeline, stream, *, wait):
    batches = []
    for number in range(2):
        outputs = pipeline.run(number)
        with torch.cuda.stream(stream):
            batches.append([output.to("cuda", non_blocking=True) for output in outputs])  # <- first
        if wait:
            stream.synchronize()
    stream.synchronize()
    return [[part.tolist() for part in batch] for batch in batches]


def buggy():
    return consume(Pipeline(), torch.cuda.Stream(), wait=False)


def fixed():
    return consume(Pipeline(), torch.cuda.Stream(), wait=True)
