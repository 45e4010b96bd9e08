"""The corrupted feed: a loader takes its output buffer back while JAX still reads from it.

A producer owns one page-aligned buffer, fills it with batch after batch and hands it out, as pipelines do that
recycle their outputs. JAX imports it without a copy and runs a train step, *later*: dispatch is asynchronous. With
`--naive` the producer fills the buffer again at once, so steps see bytes of later batches; training curves get
mysteriously worse, and nothing else tells. Without it, the same producer goes through `interlock.prefetch`.

    python examples/corrupted_feed.py --naive
    python examples/corrupted_feed.py --batches 1000

Batch `n` holds the number `n` everywhere, so a step can tell whether it saw its own batch: it returns the smallest
and the largest value. Every fourth batch is kept for a while and looked at again before it is dropped.
"""

from __future__ import annotations

import argparse
import mmap
from collections import deque
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import interlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

ROWS, WIDTH = 2048, 1024
KEPT = 8


def recycling_producer(batches: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the same 8 MiB buffer again and again, with another batch in it."""
    memory = mmap.mmap(-1, ROWS * WIDTH * 4)
    buffer = np.frombuffer(memory, np.float32).reshape(ROWS, WIDTH)
    for number in range(batches):
        buffer.fill(number)
        yield buffer


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next weights, and the smallest and largest value of the batch that the step saw."""
    hidden = jnp.tanh((batch[:512] / (1 + batch[:512])) @ weights)
    weights = weights + 1e-3 * jnp.tanh(hidden.T @ hidden)[:WIDTH, :WIDTH]
    after = jnp.sum(weights) * 0  # the probe reads the batch when the step is done, not before
    return weights, jnp.min(batch) + after, jnp.max(batch) + after


def train(batches: Iterator[jax.Array]) -> tuple[int, int, int]:
    """Run a step on each batch.

    Returns:
        How many batches there were, in how many the step saw foreign bytes, and how many kept ones changed.
    """
    weights = jnp.eye(WIDTH) * 0.5
    probes = []
    kept: deque[tuple[int, jax.Array]] = deque()
    changed = 0
    for number, batch in enumerate(batches):
        weights, low, high = train_step(weights, batch)
        probes.append((low, high))
        if number % 4 == 0:
            kept.append((number, batch))
        if len(kept) > KEPT:
            changed += not is_batch(*kept.popleft())
    changed += sum(not is_batch(number, batch) for number, batch in kept)
    corrupted = sum(not float(low) == float(high) == number for number, (low, high) in enumerate(probes))
    return len(probes), corrupted, changed


def is_batch(number: int, batch: jax.Array) -> bool:
    """Tell whether a kept batch still is what it was."""
    return float(jnp.min(batch)) == float(jnp.max(batch)) == number


def main() -> None:
    """Train, naively or with Interlock, and say how many batches were corrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="the usual form, without Interlock")
    parser.add_argument("--batches", type=int, default=200)
    arguments = parser.parse_args()
    producer = recycling_producer(arguments.batches)
    if arguments.naive:
        batches: Iterator[jax.Array] = map(jnp.from_dlpack, producer)
    else:
        batches = iter(interlock.prefetch(producer, to="jax"))
    total, corrupted, changed = train(batches)
    name = "naive" if arguments.naive else "interlock"
    print(f"{name}: {corrupted} of {total} batches corrupted in the step, {changed} of those kept changed later")
    if not arguments.naive and corrupted + changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
