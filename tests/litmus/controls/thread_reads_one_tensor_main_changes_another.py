"""A thread sums one tensor while the program changes another that lies in the same list."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def program():
    tensors = [torch.ones(4), torch.zeros(4)]
    with ThreadPoolExecutor(1) as pool:
        total = pool.submit(lambda: float(tensors[0].sum()))
        tensors[1].add_(1)
        return total.result() + float(tensors[1].sum())
