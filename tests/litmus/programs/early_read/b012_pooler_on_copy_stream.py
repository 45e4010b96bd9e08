"""An output object is read though nobody waited for the stream that copies it.

vllm-project/vllm PR 31584: the overlapped path of the pooler.
"""

from __future__ import annotations

import torch

ENTRY = "B012"
KIND = "early-read"
SCHEDULES = "lazy, starve"


class Output:
    def __init__(self, pooled, stream):
        self.landed = torch.cuda.Event()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.host = pooled.to("cpu", non_blocking=True)  # <- first
            self.landed.record(stream)
        pooled.record_stream(stream)

    def get(self):
        return self.host.tolist()  # <- second

    def get_when_landed(self):
        self.landed.synchronize()
        return self.host.tolist()


def outputs():
    copies = torch.cuda.Stream()
    return [Output(torch.randn(2, 6, device="cuda").mean(dim=0), copies) for _ in range(2)]


def buggy():
    return [output.get() for output in outputs()]


def fixed():
    return [output.get_when_landed() for output in outputs()]
