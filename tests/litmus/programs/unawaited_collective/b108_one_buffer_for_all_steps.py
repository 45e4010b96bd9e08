"""One communication buffer serves all steps: the next step fills it while the last reduction runs."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined] # public, and not exported

ENTRY = "B108"
KIND = "unawaited-collective"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    buffer = torch.zeros(128, device="cuda")
    pending = []
    for step in range(2):
        buffer.copy_(torch.full((128,), step + 1.0, device="cuda"))  # <- second
        pending.append(dist.all_reduce(buffer, async_op=True))  # <- first
    for work in pending:
        work.wait()
    total = buffer.sum().item()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return total


def fixed():
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    buffers = [torch.zeros(128, device="cuda") for _ in range(2)]
    pending = []
    for step in range(2):
        buffers[step].copy_(torch.full((128,), step + 1.0, device="cuda"))
        pending.append(dist.all_reduce(buffers[step], async_op=True))
    for work in pending:
        work.wait()
    total = buffers[1].sum().item()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return total
