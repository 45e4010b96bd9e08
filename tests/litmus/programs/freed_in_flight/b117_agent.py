"""An agent sends a tensor from its own thread and stream; the caller lets go of it when the call returns."""

import threading

import torch

ENTRY = "B117"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    message, sent = torch.ones(700, device="cuda"), []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def send(outgoing):
        with torch.cuda.stream(stream):
            sent.append(outgoing.to("cpu", non_blocking=True))  # <- first

    agent = threading.Thread(target=send, args=(message,))
    agent.start()
    agent.join()
    del message  # <- second
    torch.cuda.synchronize()
    return sent[0].sum().item()


def fixed():
    message, sent = torch.ones(700, device="cuda"), []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def send(outgoing):
        with torch.cuda.stream(stream):
            sent.append(outgoing.to("cpu", non_blocking=True))
            outgoing.record_stream(stream)

    agent = threading.Thread(target=send, args=(message,))
    agent.start()
    agent.join()
    del message
    torch.cuda.synchronize()
    return sent[0].sum().item()
