"""Large samples out of worker processes: bytes a second that reach the consumer.

    python benchmarks/feed/processes.py [--save] [--quick] [--only feed] [--seconds 0]

Samples of 150 KB, 2 MB and 32 MB are made by a function that never lets go of the interpreter: a little pure Python,
then bytes copied into the array by an assignment to a `memoryview`, which holds the lock. That costs a sample about
what a copy of its bytes costs and no more (it is measured alone and printed), so what the table compares is how samples
get from the worker into the consumer's hands. For the others the function makes its array; for Feed it fills the one
that it is given (`out=`). The consumer reads a byte of every page. Worker processes are two; DataLoader's
`prefetch_factor`, Grain's buffer and Feed's depth are tried, and the best of each counts. Medians of five rounds in
turn, each loader in a process of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import _peers
import numpy as np
from _contest import Contest, Outcome, Report, feed_arguments, other_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

KB, MB = 1 << 10, 1 << 20
SIZES = {"150 KB": (150 * KB, 64), "2 MB": (2 * MB, 8), "32 MB": (32 * MB, 2)}
"""Bytes of a sample, and samples of a batch."""
PYTHON_STEPS = 100
PATTERNS = 64
PAGE = 4096
GOAL = 3
WARM = 12
"""Batches before a timed window: more than any of the loaders keeps ready."""


@cache
def pattern(nbytes: int) -> memoryview:
    """Return bytes to copy from, a little more than a sample."""
    return memoryview(np.random.default_rng(0).bytes(nbytes + PATTERNS))


def python_work(index: int) -> int:
    """Compute something in pure Python for some microseconds."""
    mixed = index
    for step in range(PYTHON_STEPS):
        mixed = (mixed * 31 + step) & 0xFFFF
    return mixed


@dataclass(frozen=True)
class Payloads:
    """Samples of so many bytes."""

    nbytes: int
    batch: int

    def fill(self, index: int, out: npt.NDArray[Any]) -> None:
        """As in `Task`. The interpreter's lock is held throughout."""
        shift = python_work(index) % PATTERNS
        memoryview(out.data)[:] = pattern(self.nbytes)[shift : shift + self.nbytes]

    def sample(self, index: int) -> npt.NDArray[np.uint8]:
        """As in `Task`."""
        made = np.empty(self.nbytes, np.uint8)
        self.fill(index, made)
        return made


def touch(batch: Any) -> None:
    """Read a byte of every page."""
    np.asarray(batch).reshape(-1)[::PAGE].max()


def makers(task: Payloads) -> dict[str, dict[str, partial[Any]]]:
    """Return the loaders and their settings."""
    made = partial(partial, task=task, use=touch)
    return {
        "DataLoader": {
            f"2 workers, prefetch_factor {ahead}": made(_peers.dataloader, workers=2, ahead=ahead) for ahead in (2, 4)
        },
        "Grain, processes": {
            f"2 workers, buffer {ahead}": made(_peers.grain_processes, workers=2, ahead=ahead) for ahead in (1, 2)
        },
        "Feed, threads": {f"{count} threads": made(_peers.feed, workers=count, depth=2) for count in (1, 2)},
        "Feed, processes": {
            f"2 workers, depth {depth}": made(_peers.feed, workers="processes:2", depth=depth) for depth in (2, 4)
        },
    }


def alone_s(task: Payloads, samples: int) -> float:
    """Return what the function costs for a sample, into memory that was touched before."""
    out = np.ones(task.nbytes, np.uint8)
    task.fill(0, out)
    began = time.perf_counter()
    for index in range(samples):
        task.fill(index, out)
    return (time.perf_counter() - began) / samples


def gb_per_s(task: Payloads) -> Callable[[Outcome], float]:
    return lambda outcome: task.nbytes * task.batch / outcome.median_s / 1e9


def measure(size: str, given: Any, report: Report) -> None:
    """Hold the contest of one size and add it to the report."""
    task = Payloads(*SIZES[size])
    alone = alone_s(task, 3 if given.quick else max(5, (1 << 30) // task.nbytes // 4))
    steps = max(4, given.megabytes * MB // task.batch // task.nbytes)
    contest = Contest(makers(task))
    contest.hold(given, count=1 if given.quick else 5, steps=steps, warm=WARM)
    speed = gb_per_s(task)
    best = contest.best()
    base = best.get("DataLoader")
    for name, found in contest.outcomes.items():
        note = other_settings(found, lambda one: f"{speed(one):.2f}")
        if not found[0].seconds:
            report.rows.append((size, name, "", "", note))
            continue
        ratio = f"{base.median_s / found[0].median_s:.1f}" if base else ""
        report.rows.append((size, name, f"{speed(found[0]):.2f}", ratio, note))
    report.lines.append(
        f"{size}: the function alone takes {alone * 1e6:.0f} us ({task.nbytes / alone / 1e9:.1f} GB/s on one core)"
    )
    report.figures[size] = {"function_us": alone * 1e6, "batch": task.batch}
    contest.keep(report)
    report.figures[size]["variants"] = report.figures.pop("variants")
    if base and "Feed, processes" in best and task.nbytes >= 2 * MB:
        ratio_reached = base.median_s / best["Feed, processes"].median_s
        report.goal(f"{size}: Feed, processes / DataLoader", ratio_reached, GOAL, at_most=False)


def main() -> None:
    given = feed_arguments(__doc__, megabytes=(1024, "delivered in one window"))
    if given.quick:
        given.megabytes = 256
    columns = ("a sample", "loader", "GB/s", "x DataLoader", "note")
    report = Report("feed-processes", "Large samples from worker processes", columns)
    for size in SIZES:
        measure(size, given, report)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
