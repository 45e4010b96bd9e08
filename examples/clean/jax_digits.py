"""A training loop in JAX on scikit-learn's digits, on the CPU: NumPy batches into a jitted step, a new array each time.

interlock check examples/clean/jax_digits.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the weights after one step of gradient descent."""

    def loss(weights: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(images @ weights)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))

    gradient: jax.Array = jax.grad(loss)(weights)
    return weights - 0.5 * gradient


def main() -> None:
    """Train for three epochs and print the accuracy."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    weights = jnp.zeros((64, 10))
    chance = np.random.default_rng(0)
    for _ in range(3):
        order = chance.permutation(len(images))
        for start in range(0, len(images), 64):
            rows = order[start : start + 64]
            weights = step(weights, images[rows], labels[rows])
    right = float((np.asarray(images @ np.asarray(weights)).argmax(axis=1) == labels).mean())
    print(f"accuracy {right:.2f}")


if __name__ == "__main__":
    main()
