"""A transport thread sends a buffer that the producing stream has not finished."""

import queue
import threading

import torch

ENTRY = "B074"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    outbox: queue.Queue[torch.Tensor] = queue.Queue()
    sent = []

    def transport():
        buffer = outbox.get()
        with torch.cuda.stream(torch.cuda.Stream()):
            sent.append(buffer.cpu())  # <- second

    sender = threading.Thread(target=transport)
    sender.start()
    buffer = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    buffer += 1  # <- first
    outbox.put(buffer)
    sender.join()
    torch.cuda.synchronize()
    return sent[0]


def fixed():
    outbox: queue.Queue[torch.Tensor] = queue.Queue()
    sent = []

    def transport():
        buffer = outbox.get()
        with torch.cuda.stream(torch.cuda.Stream()):
            sent.append(buffer.cpu())

    sender = threading.Thread(target=transport)
    sender.start()
    buffer = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    buffer += 1
    torch.cuda.current_stream().synchronize()
    outbox.put(buffer)
    sender.join()
    torch.cuda.synchronize()
    return sent[0]
