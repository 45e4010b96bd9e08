"""An agent sends a tensor through a pinned buffer of the caller, who lets go of the tensor when the call returns."""

import threading

import torch

ENTRY = "B117"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    message, wire = torch.ones(700, device="cuda"), torch.zeros(700, pin_memory=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def send(outgoing):
        with torch.cuda.stream(stream):
            wire.copy_(outgoing, non_blocking=True)  # <- first

    agent = threading.Thread(target=send, args=(message,))
    agent.start()
    agent.join()
    del message  # <- second
    torch.cuda.synchronize()
    return wire.sum().item()


def fixed():
    message, wire = torch.ones(700, device="cuda"), torch.zeros(700, pin_memory=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def send(outgoing):
        with torch.cuda.stream(stream):
            wire.copy_(outgoing, non_blocking=True)
            outgoing.record_stream(stream)

    agent = threading.Thread(target=send, args=(message,))
    agent.start()
    agent.join()
    del message
    torch.cuda.synchronize()
    return wire.sum().item()
