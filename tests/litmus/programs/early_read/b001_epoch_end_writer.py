"""A writer saves predictions at the end of the epoch whose copies were never waited for.

Lightning-AI/pytorch-lightning#11287: predictions move with the non-blocking flag and go straight to a callback.
"""

from __future__ import annotations

import io

import numpy as np
import torch

ENTRY = "B001"
KIND = "early-read"
SCHEDULES = "lazy, starve"


def write(predictions):
    file = io.BytesIO()
    np.save(file, np.concatenate([one.numpy() for one in predictions]))  # <- second
    return file.getvalue()


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).cuda()


def buggy():
    network = model()
    predictions = []
    with torch.inference_mode():
        for batch in torch.randn(3, 5, 4):
            prediction = network(batch.cuda()).to("cpu", non_blocking=True)  # <- first
            predictions.append(prediction)
    return write(predictions)


def fixed():
    network = model()
    with torch.inference_mode():
        return write([network(batch.cuda()).to("cpu") for batch in torch.randn(3, 5, 4)])
