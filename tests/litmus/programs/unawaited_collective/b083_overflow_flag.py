"""Overflow flags are reduced asynchronously and copied back in the same loop, before any is awaited."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not exported

ENTRY = "B083"
KIND = "unawaited-collective"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    found = [torch.tensor(0.0, device="cuda"), torch.tensor(1.0, device="cuda")]
    back = [torch.zeros((), device="cuda") for _ in found]
    handles = []
    for index, flag in enumerate(found):
        handles.append(dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True))  # <- first
        back[index].copy_(flag)  # <- second
    for handle in handles:
        handle.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return [flag.item() for flag in back]


def fixed():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    found = [torch.tensor(0.0, device="cuda"), torch.tensor(1.0, device="cuda")]
    back = [torch.zeros((), device="cuda") for _ in found]
    handles = [dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True) for flag in found]
    for index, (flag, handle) in enumerate(zip(found, handles, strict=True)):
        handle.wait()
        back[index].copy_(flag)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return [flag.item() for flag in back]
