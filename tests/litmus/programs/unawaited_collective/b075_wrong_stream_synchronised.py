"""A test synchronises its own stream, not the collective's, and copies the result to the host."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not exported

ENTRY = "B075"
KIND = "unawaited-collective"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    x = torch.full((2000,), 3.0, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # <- first
    torch.cuda.current_stream().synchronize()
    values = x.cpu()  # <- second
    work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return values.sum().item()


def fixed():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    x = torch.full((2000,), 3.0, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    values = x.cpu()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return values.sum().item()
