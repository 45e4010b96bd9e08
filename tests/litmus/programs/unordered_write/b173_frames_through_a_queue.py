"""Frames are uploaded into one buffer and queued; the next upload comes while another thread saves the last."""

import queue
import threading

import torch

ENTRY = "B173"
KIND = "unordered-write"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    frames: queue.Queue[torch.Tensor | None] = queue.Queue()
    saved = []
    taken = threading.Semaphore(0)

    def save():
        while (frame := frames.get()) is not None:
            with torch.cuda.stream(torch.cuda.Stream()):
                saved.append(frame.to("cpu", non_blocking=True))  # <- first
            taken.release()

    consumer = threading.Thread(target=save)
    consumer.start()
    buffer = torch.zeros(4, 16, device="cuda")
    for number in range(3):
        buffer.copy_(torch.full((4, 16), float(number)).pin_memory(), non_blocking=True)  # <- second
        torch.cuda.current_stream().synchronize()
        frames.put(buffer)
        taken.acquire()
    frames.put(None)
    consumer.join()
    torch.cuda.synchronize()
    return [frame.mean().item() for frame in saved]


def fixed():
    frames: queue.Queue[torch.Tensor | None] = queue.Queue()
    saved = []
    taken = threading.Semaphore(0)

    def save():
        while (frame := frames.get()) is not None:
            with torch.cuda.stream(torch.cuda.Stream()):
                saved.append(frame.cpu())
            taken.release()

    consumer = threading.Thread(target=save)
    consumer.start()
    buffer = torch.zeros(4, 16, device="cuda")
    for number in range(3):
        buffer.copy_(torch.full((4, 16), float(number)).pin_memory(), non_blocking=True)
        torch.cuda.current_stream().synchronize()
        frames.put(buffer)
        taken.acquire()
    frames.put(None)
    consumer.join()
    torch.cuda.synchronize()
    return [frame.mean().item() for frame in saved]
