"""An offloaded KV cache: the wait for the prefetch stream comes before the prefetch of this layer."""

import torch

ENTRY = "B087"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    prefetch = torch.cuda.Stream()
    layers = [torch.full((2, 40), 1.0 + index).pin_memory() for index in range(2)]
    with torch.cuda.stream(prefetch):
        keys = layers[0].to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(prefetch)
    attention = keys.sum()
    with torch.cuda.stream(prefetch):
        following = layers[1].to("cuda", non_blocking=True)  # <- first
    attention += following.sum()  # <- second
    torch.cuda.synchronize()
    return attention.item()


def fixed():
    prefetch = torch.cuda.Stream()
    layers = [torch.full((2, 40), 1.0 + index).pin_memory() for index in range(2)]
    with torch.cuda.stream(prefetch):
        keys = layers[0].to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(prefetch)
    attention = keys.sum()
    with torch.cuda.stream(prefetch):
        following = layers[1].to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(prefetch)
    attention += following.sum()
    torch.cuda.synchronize()
    return attention.item()
