"""Nested streams, each fenced by `wait_stream` at entry and exit in one helper."""

from __future__ import annotations

from contextlib import contextmanager

import torch


@contextmanager
def fenced(stream):
    outer = torch.cuda.current_stream()
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield stream
    finally:
        outer.wait_stream(stream)


def program():
    table = torch.arange(4.0, device="cuda")
    with fenced(torch.cuda.Stream()):
        table += 1
        with fenced(torch.cuda.Stream()):
            table *= 3
        table -= 1
    return table.cpu()
