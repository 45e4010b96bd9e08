"""A worker receives a tensor through a queue; its kernels are not ordered after the sender's."""

import queue
import threading

import torch

ENTRY = "B172"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    inbox: queue.Queue[torch.Tensor] = queue.Queue()
    answers: queue.Queue[torch.Tensor] = queue.Queue()

    def worker():
        with torch.cuda.stream(torch.cuda.Stream()):
            answers.put(inbox.get() * 10)  # <- second

    receiver = threading.Thread(target=worker)
    receiver.start()
    message = torch.arange(40, device="cuda")  # <- first
    inbox.put(message)
    answer = answers.get()
    receiver.join()
    torch.cuda.synchronize()
    return answer.tolist()


def fixed():
    inbox: queue.Queue[tuple[torch.Tensor, torch.cuda.Event]] = queue.Queue()
    answers: queue.Queue[torch.Tensor] = queue.Queue()

    def worker():
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor, sent = inbox.get()
            sent.wait()
            answers.put(tensor * 10)

    receiver = threading.Thread(target=worker)
    receiver.start()
    message = torch.arange(40, device="cuda")
    inbox.put((message, torch.cuda.current_stream().record_event()))
    answer = answers.get()
    receiver.join()
    torch.cuda.synchronize()
    return answer.tolist()
