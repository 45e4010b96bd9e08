"""A completion flag travels on another path than the payload and arrives first."""

import time

import torch

ENTRY = "B181"
KIND = "early-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    data, control = torch.cuda.Stream(), torch.cuda.Stream()
    payload = torch.full((500,), 6.0, device="cuda")
    received, flag = torch.zeros(500, pin_memory=True), torch.zeros(1, pin_memory=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(data):
        received.copy_(payload, non_blocking=True)  # <- first
    with torch.cuda.stream(control):
        flag.copy_(torch.ones(1, device="cuda"), non_blocking=True)
        arrived = control.record_event()
    while not arrived.query():
        time.sleep(0)
    total = received.numpy().sum()  # <- second
    torch.cuda.synchronize()
    return total


def fixed():
    data, control = torch.cuda.Stream(), torch.cuda.Stream()
    payload = torch.full((500,), 6.0, device="cuda")
    received, flag = torch.zeros(500, pin_memory=True), torch.zeros(1, pin_memory=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(data):
        received.copy_(payload, non_blocking=True)
    control.wait_stream(data)
    with torch.cuda.stream(control):
        flag.copy_(torch.ones(1, device="cuda"), non_blocking=True)
        arrived = control.record_event()
    while not arrived.query():
        time.sleep(0)
    total = received.numpy().sum()
    torch.cuda.synchronize()
    return total
