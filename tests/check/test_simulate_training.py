"""A training program without hazards gives what it gives on the CPU, bit for bit, under every schedule, silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from interlock.check import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEDULES = ("lazy", "eager", "starve:default", "pct:1")
CLASSES = 5


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4 * 36, CLASSES)

    def forward(self, x):
        return self.head(self.drop(functional.relu(self.norm(self.convolution(x)))).flatten(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.recurrent = nn.LSTM(8, CLASSES, batch_first=True)

    def forward(self, x):
        return self.recurrent(self.embedding(x))[0][:, -1]


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES)),
        torch.randn(6, 8),
    ),
    "convolutional": lambda: (Convolutional(), torch.randn(6, 2, 6, 6)),
    "encoder": lambda: (Encoder(), torch.randn(6, 3, 8)),
    "recurrent": lambda: (Recurrent(), torch.randint(0, 7, (6, 4))),
    "checkpointed": lambda: (Checkpointed(), torch.randn(6, 8)),
}

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


def train(model: str, optimiser: str, device: str, *, autocast: bool = False) -> list[torch.Tensor]:
    """Train for three steps; return the losses, a prediction and all state, on the host."""
    torch.manual_seed(0)
    network, samples = MODELS[model]()
    network, samples = network.to(device), samples.to(device, non_blocking=True)
    labels = torch.randint(0, CLASSES, (6,)).to(device)
    stepper = OPTIMISERS[optimiser](network.parameters())
    kept = []
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = functional.cross_entropy(network(samples), labels)
        stepper.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        stepper.step()
        kept.append(loss.detach().cpu())
    network.eval()
    with torch.inference_mode():
        kept.append(network(samples).cpu())
    return [*kept, *(value.cpu() for value in network.state_dict().values())]


def check(model: str, optimiser: str, schedule: str, *, autocast: bool = False) -> None:
    expected = train(model, optimiser, "cpu", autocast=autocast)
    with simulate(schedule, raise_on_hazard=False) as session:
        found = train(model, optimiser, "cuda", autocast=autocast)
    report = session.report()
    assert (report.schedules[0].outcome, report.hazards, report.unsupported) == ("clean", (), ())
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("schedule", ["lazy", "eager", "pct:1"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_as_on_the_cpu(model: str, schedule: str):
    check(model, "adamw", schedule)


@pytest.mark.parametrize("schedule", ["lazy", "pct:3"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_an_optimiser_steps_as_on_the_cpu(optimiser: str, schedule: str):
    check("convolutional", optimiser, schedule)


@pytest.mark.parametrize("schedule", ["lazy", "pct:3"])
@pytest.mark.parametrize("model", ["perceptron", "convolutional", "encoder", "checkpointed"])
def test_autocast_gives_what_it_gives_on_the_cpu(model: str, schedule: str):
    check(model, "adamw", schedule, autocast=True)


def _gradients(parameters: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([parameter.grad for parameter in parameters if parameter.grad is not None])


def overlapped(device: str) -> torch.Tensor:
    """Two branches on two streams, forward and backward, joined with the edges that CUDA needs."""
    torch.manual_seed(0)
    left, right = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
    parameters = [left.weight, right.weight]
    samples = torch.randn(3, 4).to(device)
    if device == "cpu":
        loss = (left(samples) * right(samples)).sum()
        loss.backward()
        return _gradients(parameters)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        second = right(samples)
    first = left(samples)
    torch.cuda.current_stream().wait_stream(side)
    second.record_stream(torch.cuda.current_stream())
    (first * second).sum().backward()
    return _gradients(parameters).cpu()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_backward_runs_on_the_streams_of_forward_and_in_order(schedule: str):
    with simulate(schedule):
        found = overlapped("cuda")
    assert torch.equal(found, overlapped("cpu"))


def test_a_gradient_crosses_to_the_host_and_back():
    weights = torch.ones(3, requires_grad=True)
    with simulate("lazy"):
        (weights.cuda() * 2).cpu().sum().backward()
    assert type(weights.grad) is torch.Tensor
    assert weights.grad is not None
    assert weights.grad.tolist() == [2.0, 2.0, 2.0]
