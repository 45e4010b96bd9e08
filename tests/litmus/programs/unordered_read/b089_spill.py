"""A task that is short of memory spills another task's buffer, whose stream it does not know."""

import threading

import torch

ENTRY = "B089"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    spillable, spilled = {}, {}
    task = torch.cuda.Stream()
    with torch.cuda.stream(task):
        column = torch.arange(200, device="cuda")
        spillable["column"] = column.square_()  # <- first

    def spill():
        for name, buffer in spillable.items():
            spilled[name] = buffer.cpu()  # <- second

    other = threading.Thread(target=spill)
    other.start()
    other.join()
    torch.cuda.synchronize()
    return spilled["column"].sum().item()


def fixed():
    spillable, spilled = {}, {}
    task = torch.cuda.Stream()
    with torch.cuda.stream(task):
        column = torch.arange(200, device="cuda")
        spillable["column"] = (column.square_(), task.record_event())

    def spill():
        for name, (buffer, written) in spillable.items():
            torch.cuda.current_stream().wait_event(written)
            spilled[name] = buffer.cpu()

    other = threading.Thread(target=spill)
    other.start()
    other.join()
    torch.cuda.synchronize()
    return spilled["column"].sum().item()
