"""An engine infers on the previous frame: its stream does not wait for the upload of this one."""

import torch

ENTRY = "B064"
KIND = "unordered-read"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    upload, engine = torch.cuda.Stream(), torch.cuda.Stream()
    image = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    classes = []
    for number in range(3):
        frame = torch.full((16,), float(number)).pin_memory()
        with torch.cuda.stream(upload):
            image.copy_(frame, non_blocking=True)  # <- first
        with torch.cuda.stream(engine):
            answer = image.max()  # <- second
        torch.cuda.synchronize()
        classes.append(answer.item())
    return classes


def fixed():
    upload, engine = torch.cuda.Stream(), torch.cuda.Stream()
    image = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    classes = []
    for number in range(3):
        frame = torch.full((16,), float(number)).pin_memory()
        with torch.cuda.stream(upload):
            image.copy_(frame, non_blocking=True)
        engine.wait_stream(upload)
        with torch.cuda.stream(engine):
            answer = image.max()
        torch.cuda.synchronize()
        classes.append(answer.item())
    return classes
