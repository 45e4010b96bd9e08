"""What a feed's state costs, and whether each sample comes once whoever goes on.

    python benchmarks/feed/resume.py [--quick] [--json FILE]

First table: bytes of a state as JSON, microseconds of `state_dict()`, and milliseconds from a fresh feed to its first
batch after `load_state_dict()` in the middle of an epoch, by the length of the source. Medians.

Second table: interrupted epochs. Each row is an epoch of 100,003 samples in random order that is stopped and resumed;
it counts samples that were missing and samples that came more than once.

Third table: millions of shuffled indices a second, next to a whole permutation of NumPy.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from interlock import Feed, Shard
from interlock.feed._order import Bijection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SAMPLES = 100_003
LENGTHS = (10**3, 10**6, 10**9, 10**12)


class Numbers:
    """As many numbers as one likes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


def feed_of(length: int, rank: int = 0, world: int = 1) -> Feed:
    return Feed(Numbers(length), batch_size=64, workers=0, shuffle=True, shard=Shard(rank, world))


def median_s(action: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def costs(length: int, rounds: int) -> dict[str, float]:
    """Measure the state of a feed whose consumer is in the middle of an epoch."""
    feed = feed_of(length)
    feed.load_state_dict({**feed.state_dict(), "position": length // 2})
    next(iter(feed))
    state = feed.state_dict()

    def resume() -> None:
        resumed = feed_of(length)
        resumed.load_state_dict(state)
        next(iter(resumed))

    return {
        "state_bytes": len(json.dumps(state)),
        "save_us": median_s(feed.state_dict, 20 * rounds) * 1e6,
        "first_batch_ms": median_s(resume, rounds) * 1e3,
    }


def interrupted(plan: Iterable[tuple[int, float]]) -> dict[str, int]:
    """Run an epoch by (number of ranks, part of the epoch until the next stop); the last goes on to the end."""
    seen: Counter[int] = Counter()
    state: dict[str, Any] = {}
    for world, until in plan:
        feeds = [feed_of(SAMPLES, rank, world) for rank in range(world)]
        for feed in feeds if state else []:
            feed.load_state_dict(state)
        batches = [iter(feed) for feed in feeds]
        while feeds[0].state_dict()["epoch"] == 0 and feeds[0].state_dict()["position"] < until * SAMPLES:
            for one in batches:
                seen.update(next(one, np.empty(0, np.int64)).tolist())
        state = json.loads(json.dumps(feeds[0].state_dict()))
    return {"missing": SAMPLES - len(seen), "more than once": sum(count > 1 for count in seen.values())}


def at_random(stops: int, seed: int) -> list[tuple[int, float]]:
    chance = random.Random(seed)  # noqa: S311 - where a run is stopped is no secret
    return [*((chance.randint(1, 5), part) for part in sorted(chance.random() for _ in range(stops))), (2, 2.0)]


def speeds(rounds: int) -> dict[str, float]:
    """Millions of indices a second for a source of 1.2 million, and of NumPy's permutation of all."""
    shuffle = Bijection(1_200_000, (0, 0))
    found = {}
    for size in (64, 4096, 65_536):
        at = functools.partial(shuffle.at, np.arange(size))
        found[f"{size} at a time"] = size / median_s(at, 10 * rounds) / 1e6
    chance = np.random.default_rng(0)
    found["numpy permutation"] = 1.2 / median_s(lambda: chance.permutation(1_200_000), rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 25
    console = Console(width=100)
    figures: dict[str, Any] = {"costs": {}, "interrupted": {}, "million_indices_per_s": speeds(rounds)}

    table = Table("samples", "state, bytes", "save, us", "load to first batch, ms", title="State")
    for length in LENGTHS:
        row = figures["costs"][f"{length:,}"] = costs(length, rounds)
        table.add_row(f"{length:,}", f"{row['state_bytes']}", f"{row['save_us']:.1f}", f"{row['first_batch_ms']:.2f}")
    console.print(table)

    plans = {"2 resumes, 1 rank": [(1, 0.2), (1, 0.7), (1, 2.0)], "ranks 4, 3, 5": [(4, 0.3), (3, 0.6), (5, 2.0)]}
    for number in range(1 if arguments.quick else 5):
        plans[f"random {number}: 12 stops, 1 to 5 ranks"] = at_random(12, number)
    table = Table("interrupted epoch", "missing", "more than once", title=f"{SAMPLES:,} samples")
    for name, plan in plans.items():
        counts = figures["interrupted"][name] = interrupted(plan)
        table.add_row(name, *(str(value) for value in counts.values()))
    console.print(table)

    table = Table("indices", "million a second", title="Shuffle of 1.2 million")
    for name, value in figures["million_indices_per_s"].items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
