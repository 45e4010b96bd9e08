"""Ordinary training programs: nothing is said about them, and they compute what the CPU computes, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from interlock import check
from interlock._core import _events

if TYPE_CHECKING:
    from collections.abc import Callable

OTHERS = ("eager", "pct:1")
STEPS = 2

State = list[torch.Tensor]


# ------------------------------------------------------------ the programs, as people write them


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def state_of(model: nn.Module, losses: list[float]) -> State:
    """Return everything that training left behind, on the CPU."""
    return [torch.tensor(losses), *(value.detach().cpu() for value in model.state_dict().values())]


def mlp(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> State:
    where = device()
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)).to(where)
    update = optimizer(model)
    inputs, targets = torch.randn(STEPS, 16, 20), torch.randint(4, (STEPS, 16))
    losses = []
    for step in range(STEPS):
        update.zero_grad()
        loss = functional.cross_entropy(model(inputs[step].to(where)), targets[step].to(where))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        losses.append(loss.item())
    return state_of(model, losses)


def mlp_with_sgd() -> State:
    return mlp(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def mlp_with_adamw() -> State:
    return mlp(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False))


def mlp_with_foreach_adamw() -> State:
    return mlp(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True))


def mlp_with_fused_adamw() -> State:
    return mlp(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))


def conv_net() -> State:
    where = device()
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 10),
    )
    model.to(where)
    update = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, STEPS)
    images, labels = torch.randn(STEPS, 8, 1, 8, 8), torch.randint(10, (STEPS, 8))
    losses = []
    for step in range(STEPS):
        update.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(images[step].to(where)), labels[step].to(where))
        loss.backward()
        update.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(images[0].to(where)).argmax(1).float().mean().item())
    return state_of(model, losses)


def transformer() -> State:
    where = device()
    layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
    model = nn.ModuleDict({"embed": nn.Embedding(30, 16), "encoder": encoder, "head": nn.Linear(16, 30)}).to(where)
    update = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(30, (STEPS, 4, 9))
    mask = nn.Transformer.generate_square_subsequent_mask(8, device=torch.device(where))
    losses = []
    for step in range(STEPS):
        batch = tokens[step].to(where)
        hidden = model["encoder"](model["embed"](batch[:, :-1]), mask=mask, is_causal=True)
        loss = functional.cross_entropy(model["head"](hidden).flatten(0, 1), batch[:, 1:].flatten())
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return state_of(model, losses)


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 12)) for _ in range(2)
        )
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


def gradient_checkpointing(*, use_reentrant: bool = False) -> State:
    where = device()
    model = Checkpointed(use_reentrant=use_reentrant).to(where)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in torch.randn(STEPS, 6, 12):
        loss = model(batch.to(where).requires_grad_()).square().mean()
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return state_of(model, losses)


def reentrant_checkpointing() -> State:
    return gradient_checkpointing(use_reentrant=True)


def autocast() -> State:
    where = device()
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1)).to(where)
    update = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for batch in torch.randn(STEPS, 10, 16):
        update.zero_grad()
        with torch.autocast(where, dtype=torch.bfloat16):
            prediction = model(batch.to(where))
            loss = functional.mse_loss(prediction.float(), torch.ones(10, 1, device=where))
        loss.backward()
        update.step()
        losses.append(loss.item())
    return state_of(model, losses)


def loader(workers: int, epochs: int) -> State:
    where = device()
    dataset = TensorDataset(torch.randn(24, 10), torch.randint(3, (24,)))
    batches = DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, pin_memory=where == "cuda", drop_last=True
    )
    model = nn.Linear(10, 3).to(where)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        running = torch.zeros((), device=where)
        for inputs, targets in batches:
            inputs, targets = inputs.to(where, non_blocking=True), targets.to(where, non_blocking=True)  # noqa: PLW2901 - as people write it
            loss = functional.cross_entropy(model(inputs), targets)
            update.zero_grad()
            loss.backward()
            update.step()
            running += loss.detach()
        losses.append(running.item())
    return state_of(model, losses)


def pinned_loader() -> State:
    return loader(workers=0, epochs=2)


def pinned_loader_with_workers() -> State:
    return loader(workers=2, epochs=1)


def prefetching_loader() -> State:
    """The prefetcher that many projects have: a side stream uploads the next batch, with its wait and its record."""
    where = device()
    batches = iter(torch.randn(4, 8, 10))
    model = nn.Linear(10, 10).to(where)
    if where == "cpu":
        return [model(batch).detach() for batch in batches]
    side = torch.cuda.Stream()

    def upload() -> torch.Tensor | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            uploaded: torch.Tensor = batch.pin_memory().to(where, non_blocking=True)
            return uploaded

    outputs, following = [], upload()
    while following is not None:
        torch.cuda.current_stream().wait_stream(side)
        following.record_stream(torch.cuda.current_stream())
        batch, following = following, upload()
        outputs.append(model(batch).detach().cpu())
    return outputs


PROGRAMS = [
    mlp_with_sgd,
    mlp_with_adamw,
    mlp_with_foreach_adamw,
    mlp_with_fused_adamw,
    conv_net,
    transformer,
    gradient_checkpointing,
    reentrant_checkpointing,
    autocast,
    pinned_loader,
    pinned_loader_with_workers,
    prefetching_loader,
]


# ------------------------------------------------------------ what is asked of them


def run(program: Callable[[], State], schedule: str) -> tuple[State, check.Report]:
    torch.manual_seed(7)
    with check.simulate(schedule, raise_on_hazard=False) as session:
        result = program()
    return result, session.report()


def schedules(program: Callable[[], State]) -> list[str]:
    """Return the schedules of the default check: each stream that the program uses is starved once."""
    streams: dict[str, None] = {}

    def look(event: _events.Event) -> None:
        if isinstance(event, _events.Access) and event.issuer:
            streams[event.timeline] = None

    stop = _events.observe(look)
    try:
        run(program, "lazy")
    finally:
        stop()
    return ["lazy", *OTHERS, *(f"starve:{stream}" for stream in streams)]


# Another test of this process may have loaded JAX, which warns of forks; the loader's workers never touch it.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_right_program_is_clean_and_equal_to_the_cpu_under_every_schedule(program: Callable[[], State]):
    torch.manual_seed(7)
    expected = program()
    for schedule in schedules(program):
        result, report = run(program, schedule)
        assert (schedule, report.failure, report.hazards, report.unsupported) == (schedule, None, (), ())
        assert len(result) == len(expected)
        for ours, plain in zip(result, expected, strict=True):
            assert torch.equal(ours, plain), schedule


def test_the_programs_really_run_on_the_simulated_device():
    assert device() == "cpu"
    with check.simulate("lazy"):
        assert device() == "cuda"
        assert nn.Linear(2, 2).to(device()).weight.is_cuda


# ------------------------------------------------------------ JAX


def digits() -> tuple[np.ndarray, list[float]]:
    """Train a softmax on scikit-learn's digits; every batch is a fresh NumPy array."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))

    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(x @ weights)
        return -jnp.mean(jnp.take_along_axis(scores, y[:, None], axis=1))

    @jax.jit
    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(weights, x, y)
        return weights - 0.5 * gradient, value

    weights, losses = jnp.zeros((64, 10)), []
    for start in range(0, 1536, 128):
        chosen = order[start : start + 128]
        weights, value = step(weights, images[chosen], jax.device_put(labels[chosen]))
        losses.append(float(value))
    return np.asarray(weights), losses


@pytest.mark.parametrize("schedule", ["lazy", *OTHERS])
def test_a_jax_training_loop_is_clean_and_unchanged(schedule: str):
    weights, losses = digits()
    with check.simulate(schedule, raise_on_hazard=False) as session:
        watched, watched_losses = digits()
    report = session.report()
    assert (report.failure, report.hazards, report.unsupported) == (None, (), ())
    assert losses == watched_losses
    np.testing.assert_array_equal(weights, watched)
    assert losses[-1] < losses[0]
