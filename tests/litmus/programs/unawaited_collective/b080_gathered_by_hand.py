"""A test drives an all-gather by hand and skips the wait that the real code does."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not exported

ENTRY = "B080"
KIND = "unawaited-collective"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    shard = torch.full((16,), 0.5, device="cuda")
    parameter = [torch.zeros(16, device="cuda") for _ in range(dist.get_world_size())]
    work = dist.all_gather(parameter, shard, async_op=True)  # <- first
    y = torch.cat(parameter) * 2  # <- second
    torch.cuda.synchronize()
    work.wait()
    dist.destroy_process_group()
    return y.tolist()


def fixed():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    shard = torch.full((16,), 0.5, device="cuda")
    parameter = [torch.zeros(16, device="cuda") for _ in range(dist.get_world_size())]
    work = dist.all_gather(parameter, shard, async_op=True)
    work.wait()
    y = torch.cat(parameter) * 2
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return y.tolist()
