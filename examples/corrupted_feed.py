"""The corrupted feed: a loader takes its output buffer back while JAX still reads from it.

A producer owns one page-aligned buffer, fills it with batch after batch and hands it out, as pipelines do that
recycle their outputs. JAX imports it without a copy, or on a GPU copies it with `device_put` two batches ahead, as
`flax.jax_utils.prefetch_to_device` does, and runs a train step: all of it *later*, for dispatch is asynchronous. With
`--naive` the producer fills the buffer again at once, so steps see bytes of later batches; training curves get
mysteriously worse, and nothing else tells. Without it, the same producer goes through `interlock.prefetch`.

    python examples/corrupted_feed.py --naive
    python examples/corrupted_feed.py --batches 1000
    python examples/corrupted_feed.py --naive --runs 20

Batch `n` holds the number `n` everywhere, so a step can tell whether it saw its own batch: it returns the smallest
and the largest value. Every fourth batch is kept for a while and looked at again before it is dropped. A GPU is given
some other work first, so that it is behind the host, as it is in training.
"""

from __future__ import annotations

import argparse
import itertools
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

ON_GPU = jax.default_backend() != "cpu"
ROWS, WIDTH = (16384 if ON_GPU else 2048), 1024
KEPT = 8


def recycling_producer(batches: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the same 8 MiB buffer (64 MiB for a GPU) again and again, with another batch in it."""
    memory = mmap.mmap(-1, ROWS * WIDTH * 4)
    buffer = np.frombuffer(memory, np.float32).reshape(ROWS, WIDTH)
    for number in range(batches):
        buffer.fill(number)
        yield buffer


def prefetch_to_device(batches: Iterator[npt.NDArray[np.float32]], size: int = 2) -> Iterator[jax.Array]:
    """Put batches on a GPU ahead of their use. Correct, as long as nobody writes to a batch that was yielded."""
    ahead = deque(jax.device_put(batch) for batch in itertools.islice(batches, size))
    while ahead:
        yield ahead.popleft()
        ahead.extend(jax.device_put(batch) for batch in itertools.islice(batches, 1))


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next weights, and the smallest and largest value of the batch that the step saw."""
    hidden = jnp.tanh((batch[:512] / (1 + batch[:512])) @ weights)
    weights = weights + 1e-3 * jnp.tanh(hidden.T @ hidden)[:WIDTH, :WIDTH]
    after = jnp.sum(weights) * 0  # the probe reads the batch when the step is done, not before
    return weights, jnp.min(batch) + after, jnp.max(batch) + after


@jax.jit
def other_work(weights: jax.Array) -> jax.Array:
    """Keep a GPU busy for some tens of milliseconds; return the weights, unchanged."""
    large = jnp.tile(weights, (8, 8))
    busy = jax.lax.fori_loop(0, 4, lambda _, square: jnp.tanh(square @ large), large)
    return weights + 0 * jnp.sum(busy)


def train(batches: Iterator[jax.Array]) -> tuple[int, int, int]:
    """Run a step on each batch.

    Returns:
        How many batches there were, in how many the step saw foreign bytes, and how many kept ones changed.
    """
    weights = jnp.eye(WIDTH) * 0.5
    if ON_GPU:
        weights = other_work(weights)
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


def run(*, naive: bool, batches: int) -> int:
    """Train, naively or with Interlock; say and return how many batches were corrupted or changed."""
    producer = recycling_producer(batches)
    if naive:
        handed_over = prefetch_to_device(producer) if ON_GPU else map(jnp.from_dlpack, producer)
    else:
        handed_over = iter(interlock.prefetch(producer, to="jax"))
    total, corrupted, changed = train(handed_over)
    name = "naive" if naive else "interlock"
    print(f"{name}: {corrupted} of {total} batches corrupted in the step, {changed} of those kept changed later")
    return corrupted + changed


def main() -> None:
    """Run once or more often; end with 1 if Interlock let a batch through that was corrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="the usual form, without Interlock")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1, help="how often to do it (default: once)")
    arguments = parser.parse_args()
    found = [run(naive=arguments.naive, batches=arguments.batches) for _ in range(arguments.runs)]
    if arguments.runs > 1:
        print(f"corrupted in {sum(map(bool, found))} of {arguments.runs} runs")
    if not arguments.naive and any(found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
