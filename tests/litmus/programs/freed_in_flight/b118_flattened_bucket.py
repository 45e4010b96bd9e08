"""Gradients are flattened into a bucket that goes out of use before the other stream has reduced it."""

import torch

ENTRY = "B118"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    reduce = torch.cuda.Stream()
    gradients = [torch.ones(64, device="cuda"), torch.ones(32, device="cuda")]
    average = torch.zeros(96, device="cuda")
    bucket = torch.cat(gradients)
    reduce.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(reduce):
        average += bucket  # <- first
    bucket = torch.cat([gradient * 2 for gradient in gradients])  # <- second
    torch.cuda.synchronize()
    return average.sum().item(), bucket.sum().item()


def fixed():
    reduce = torch.cuda.Stream()
    gradients = [torch.ones(64, device="cuda"), torch.ones(32, device="cuda")]
    average = torch.zeros(96, device="cuda")
    bucket = torch.cat(gradients)
    reduce.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(reduce):
        average += bucket
        bucket.record_stream(reduce)
    bucket = torch.cat([gradient * 2 for gradient in gradients])
    torch.cuda.synchronize()
    return average.sum().item(), bucket.sum().item()
