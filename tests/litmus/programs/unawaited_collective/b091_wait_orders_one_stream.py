"""wait() orders only the stream that is current; another reads the result."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not exported

ENTRY = "B091"
KIND = "unawaited-collective"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    metrics = torch.cuda.Stream()
    gradient = torch.full((300,), 2.0, device="cuda")
    dist.all_reduce(gradient, async_op=True).wait()  # <- first
    with torch.cuda.stream(metrics):
        norm = gradient.norm()  # <- second
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return norm.item()


def fixed():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    metrics = torch.cuda.Stream()
    gradient = torch.full((300,), 2.0, device="cuda")
    work = dist.all_reduce(gradient, async_op=True)
    with torch.cuda.stream(metrics):
        work.wait()
        norm = gradient.norm()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return norm.item()
