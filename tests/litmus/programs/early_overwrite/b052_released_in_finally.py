"""A list of addresses is returned to its pool in `finally`, right after the copy was queued.

vllm-project/vllm-ascend PR 13894, ray-project/ray PR 64431: found by review.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch

ENTRY = "B052"
KIND = "early-overwrite"
SCHEDULES = "lazy, starve"

SCRUBBED = -1


@contextmanager
def borrowed(pool, *, wait):
    descriptors = pool.pop()
    try:
        yield descriptors
    finally:
        if wait:
            torch.cuda.current_stream().synchronize()
        descriptors.fill_(SCRUBBED)  # <- second
        pool.append(descriptors)


def transfer(*, wait):
    pool = [torch.empty(4, dtype=torch.int64).pin_memory()]
    with borrowed(pool, wait=wait) as descriptors:
        torch.arange(4, out=descriptors)
        on_device = descriptors.cuda(non_blocking=True)  # <- first
    return on_device.tolist()


def buggy():
    return transfer(wait=False)


def fixed():
    return transfer(wait=True)
