"""Two gradient buffers take turns, but the third step refills the first while it is being reduced."""

import torch

ENTRY = "B104"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    reduce = torch.cuda.Stream()
    buffers = [torch.zeros(50, device="cuda") for _ in range(2)]
    averaged = torch.zeros(4, 50, device="cuda")
    torch.cuda.synchronize()
    for step in range(4):
        buffer = buffers[step % 2]
        buffer.copy_(torch.full((50,), step + 1.0, device="cuda"))  # <- second
        reduce.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reduce):
            torch.div(buffer, 2, out=averaged[step])  # <- first
    torch.cuda.synchronize()
    return averaged[:, 0].tolist()


def fixed():
    reduce = torch.cuda.Stream()
    buffers = [torch.zeros(50, device="cuda") for _ in range(2)]
    reduced = [torch.cuda.Event() for _ in range(2)]
    averaged = torch.zeros(4, 50, device="cuda")
    torch.cuda.synchronize()
    for step in range(4):
        buffer = buffers[step % 2]
        torch.cuda.current_stream().wait_event(reduced[step % 2])
        buffer.copy_(torch.full((50,), step + 1.0, device="cuda"))
        reduce.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reduce):
            torch.div(buffer, 2, out=averaged[step])
            reduced[step % 2].record()
    torch.cuda.synchronize()
    return averaged[:, 0].tolist()
