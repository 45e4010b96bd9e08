"""A test hands a buffer to a second stream in order, and checks it on the first one without."""

import torch

ENTRY = "B096"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        buffer = torch.zeros(80, device="cuda")
        expected = torch.full((80,), 9.0, device="cuda")
    two.wait_stream(one)
    with torch.cuda.stream(two):
        buffer += 9  # <- first
    with torch.cuda.stream(one):
        equal = torch.equal(buffer, expected)  # <- second
    torch.cuda.synchronize()
    return equal


def fixed():
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        buffer = torch.zeros(80, device="cuda")
        expected = torch.full((80,), 9.0, device="cuda")
    two.wait_stream(one)
    with torch.cuda.stream(two):
        buffer += 9
    one.wait_stream(two)
    with torch.cuda.stream(one):
        equal = torch.equal(buffer, expected)
    torch.cuda.synchronize()
    return equal
