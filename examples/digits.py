"""Two small classifiers of scanned digits, trained from a `Feed`, for `interlock predict`.

    python examples/digits.py FOLDER

trains a JAX network and a torch network on scikit-learn's 1,797 digits (8 x 8 pixels), and leaves in FOLDER the
images that were held out (`images.npy`), their labels and the weights. Then

    DIGITS=FOLDER interlock predict examples/digits.py:jax_model FOLDER/images.npy parquet:FOLDER/jax

predicts with `jax_model`, and the same with `torch_model`.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interlock import Feed

if TYPE_CHECKING:
    import numpy.typing as npt

HIDDEN, EPOCHS, BATCH, HELD_OUT = 64, 30, 64, 360
Weights = dict[str, Any]


def load_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return images in 0 to 1, shape (1797, 8, 8), and labels."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 - only training needs it

    images, labels = load(return_X_y=True)
    return (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int32)


def forward(weights: Weights, images: jax.Array) -> jax.Array:
    """Return logits, shape (rows, 10)."""
    hidden = jax.nn.relu(images.reshape(len(images), 64) @ weights["w1"] + weights["b1"])
    logits: jax.Array = hidden @ weights["w2"] + weights["b2"]
    return logits


def train_jax(images: npt.NDArray[np.float32], labels: npt.NDArray[np.int32]) -> Weights:
    """Train by stochastic gradient descent with momentum. The loop never waits for a step."""

    def loss(weights: Weights, batch: dict[str, jax.Array]) -> jax.Array:
        logs = jax.nn.log_softmax(forward(weights, batch["image"]))
        return -jnp.mean(jnp.take_along_axis(logs, batch["label"][:, None], axis=1))

    @jax.jit
    def step(weights: Weights, speed: Weights, batch: dict[str, jax.Array]) -> tuple[Weights, Weights]:
        gradient = jax.grad(loss)(weights, batch)
        speed = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, speed, gradient)
        return jax.tree.map(jnp.add, weights, speed), speed

    first, second = jax.random.split(jax.random.key(0))
    weights = {
        "w1": jax.random.normal(first, (64, HIDDEN)) / 8,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 10)) / 8,
        "b2": jnp.zeros(10),
    }
    speed = jax.tree.map(jnp.zeros_like, weights)
    feed = Feed({"image": images, "label": labels}, batch_size=BATCH, to="jax", shuffle=True, seed=1, drop_last=True)
    for _ in range(EPOCHS):
        for batch in feed:
            weights, speed = step(weights, speed, batch)
    return {name: np.asarray(value) for name, value in weights.items()}


def torch_network() -> torch.nn.Module:
    """Return the untrained torch network."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(HIDDEN, 10),
    )


def train_torch(images: npt.NDArray[np.float32], labels: npt.NDArray[np.int32]) -> dict[str, torch.Tensor]:
    """Train the same kind of network with torch."""
    network = torch_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    feed = Feed((images, labels), batch_size=BATCH, to="torch", shuffle=True, seed=2, drop_last=True)
    for _ in range(EPOCHS):
        for batch, target in feed:
            optimizer.zero_grad()
            loss: torch.Tensor = torch.nn.functional.cross_entropy(network(batch), target.long())
            loss.backward()  # type: ignore[no-untyped-call] # torch publishes no type for it
            optimizer.step()
    return network.state_dict()


def folder() -> Path:
    """Return where the weights are."""
    return Path(os.environ.get("DIGITS", "demo-out"))


@cache
def trained() -> Weights:
    """Return the JAX network's weights."""
    with np.load(folder() / "jax-weights.npz", allow_pickle=False) as file:
        return dict(file)


@jax.jit
def jax_model(images: jax.Array) -> dict[str, jax.Array]:
    """Return the digit of each image and the probabilities."""
    logits = forward(trained(), images)
    return {"digit": jnp.argmax(logits, axis=1), "probability": jax.nn.softmax(logits)}


class TorchModel(torch.nn.Module):
    """The torch network with its trained weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch_network()
        self.network.load_state_dict(torch.load(folder() / "torch-weights.pt", weights_only=True))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the digit of each image and the probabilities."""
        logits = self.network(images)
        return {"digit": logits.argmax(dim=1), "probability": logits.softmax(dim=1)}


torch_model = TorchModel


def main(target: Path) -> None:
    """Train both and leave what prediction needs in `target`."""
    target.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    np.save(target / "images.npy", images[:HELD_OUT])
    np.save(target / "labels.npy", labels[:HELD_OUT])
    np.savez(target / "jax-weights.npz", **train_jax(images[HELD_OUT:], labels[HELD_OUT:]))
    torch.save(train_torch(images[HELD_OUT:], labels[HELD_OUT:]), target / "torch-weights.pt")
    print(f"trained two networks on {len(images) - HELD_OUT} digits, {EPOCHS} epochs each; {HELD_OUT} held out")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
