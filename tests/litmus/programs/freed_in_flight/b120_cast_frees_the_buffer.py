"""A cast to another type rebinds the name of a gradient that the communication stream still works on."""

import torch

ENTRY = "B120"
KIND = "freed-in-flight"
SCHEDULES = "lazy, eager, starve, pct"


def buggy():
    communication = torch.cuda.Stream()
    gradients = []
    for layer in range(2):
        gradient = torch.full((128,), layer + 1.0, dtype=torch.bfloat16, device="cuda")
        communication.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(communication):
            reduced = gradient * 0.5  # <- first
        gradient = gradient.float()  # <- second
        torch.cuda.current_stream().wait_stream(communication)
        gradients.append(reduced + gradient)
        torch.cuda.synchronize()
    return [gradient.sum().item() for gradient in gradients]


def fixed():
    communication = torch.cuda.Stream()
    gradients = []
    for layer in range(2):
        gradient = torch.full((128,), layer + 1.0, dtype=torch.bfloat16, device="cuda")
        communication.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(communication):
            reduced = gradient * 0.5
        torch.cuda.current_stream().wait_stream(communication)
        gradient = gradient.float()
        gradients.append(reduced + gradient)
        torch.cuda.synchronize()
    return [gradient.sum().item() for gradient in gradients]
