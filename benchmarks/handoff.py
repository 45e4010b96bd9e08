"""What a hand-off costs, and how fast JAX on the CPU is fed.

    python benchmarks/handoff.py [--quick] [--json FILE]

First table: Interlock's own cost for one batch of 1 MiB from claim to reclaim (claim, publish, lend, hand-over to the
framework, drop, return), with a reader that writes nothing, next to the framework's import alone.

Second table: GiB/s of float32 batches in memory to a jitted reduction on the CPU: `Feed` against copying each batch
with `jnp.array` and against `DataLoader` with `jnp.asarray` (the better of no workers and two). All in one process,
in turn, medians of the rounds. A ratio above 1 means that Interlock is faster than the better of the two.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from interlock import Feed
from interlock.devices import HostDevice
from interlock.feed._layout import Layout
from interlock.feed._pipeline import Pipeline
from interlock.feed._staging import Staging
from interlock.feed._work import Work
from interlock.frameworks import framework_named

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

MIB = 1 << 20
ROW_FLOATS = 16384  # a sample of 64 KiB
SIZES_MIB = (4, 16, 64)


class NullReader:
    """Batches of 1 MiB in which nothing is written."""

    def __init__(self) -> None:
        self.layout = Layout.of_sample(np.zeros(MIB // 4 // 64, np.float32), 64)
        self.slot_bytes = self.layout.size_bytes

    def plan(self, number: int) -> Work:
        """As in `Reader`."""
        return Work(number, number * 64, 64, units=1, layout=self.layout)

    def run(self, work: Work, unit: int, memory: Callable[[int], Any]) -> None:
        """As in `Reader`: nothing."""

    def finish(self, work: Work, memory: Callable[[int], Any]) -> None:  # noqa: ARG002 - part of the protocol
        """As in `Reader`."""
        work.trim = (work.rows,)

    def stop(self) -> None:
        """As in `Reader`."""


def own_cost_us(to: str, batches: int) -> float:
    """Median microseconds of one batch from claim to reclaim."""
    staging = Staging(HostDevice(), framework_named(to), 64 * MIB, 10.0)
    pipeline = Pipeline(NullReader(), staging, workers=0, depth=1)
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        _, batch = pipeline.take()
        del batch
        times.append(time.perf_counter() - began)
    pipeline.stop()
    return statistics.median(times) * 1e6


def import_cost_us(to: str, batches: int) -> float:
    """Median microseconds of the framework's own import of an aligned 1 MiB array, dropped at once."""
    framework = framework_named(to)
    array = np.frombuffer(HostDevice().allocate(MIB).view(), np.float32)
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        framework.lend(array)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


@jax.jit
def step(batch: jax.Array) -> jax.Array:
    return jnp.sum(batch)


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """The samples, as a DataLoader wants them."""

    def __init__(self, data: npt.NDArray[np.float32]) -> None:
        self.data = torch.from_numpy(data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


def consume(batches: Any) -> None:
    results = [step(batch) for batch in batches]
    for result in results:
        result.block_until_ready()


def contenders(data: npt.NDArray[np.float32], rows: int) -> dict[str, Callable[[], None]]:
    starts = range(0, len(data), rows)
    loaders = {
        workers: torch.utils.data.DataLoader(Rows(data), rows, num_workers=workers, persistent_workers=workers > 0)
        for workers in (0, 2)
    }
    feed = Feed(data, batch_size=rows, to="jax", workers=2, depth=2)
    return {
        "Feed": lambda: consume(feed),
        "jnp.array": lambda: consume(jnp.array(data[start : start + rows]) for start in starts),
        "DataLoader, 0 workers": lambda: consume(jnp.asarray(batch.numpy()) for batch in loaders[0]),
        "DataLoader, 2 workers": lambda: consume(jnp.asarray(batch.numpy()) for batch in loaders[2]),
    }


def throughput(data: npt.NDArray[np.float32], size_mib: int, rounds: int) -> dict[str, float]:
    """Median GiB/s by contender; every round runs each of them once."""
    runs = contenders(data, size_mib * MIB // (ROW_FLOATS * 4))
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: data.nbytes / (1 << 30) / statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    batches, rounds, total_mib = (200, 2, 128) if arguments.quick else (5000, 9, 512)
    console = Console(width=110)
    versions = (
        f"Python {platform.python_version()}, numpy {np.__version__}, jax {jax.__version__}, torch {torch.__version__}"
    )
    console.print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads; {versions}\n")

    table = Table("to", "claim to reclaim, us", "framework's import alone, us", title="Own cost per batch of 1 MiB")
    figures: dict[str, Any] = {"versions": versions, "own_cost_us": {}, "gib_per_s": {}}
    for to in ("numpy", "torch", "jax"):
        own, alone = own_cost_us(to, batches), import_cost_us(to, batches)
        figures["own_cost_us"][to] = {"claim_to_reclaim": own, "import_alone": alone}
        table.add_row(to, f"{own:.1f}", f"{alone:.1f}")
    console.print(table)

    data = np.ones((total_mib * MIB // (ROW_FLOATS * 4), ROW_FLOATS), np.float32)
    table = Table("batch", title="JAX on the CPU, GiB/s, from memory")
    rows = {size: throughput(data, size, rounds) for size in SIZES_MIB}
    for name in rows[SIZES_MIB[0]]:
        table.add_column(name, justify="right")
    table.add_column("Feed / better peer", justify="right")
    for size, row in rows.items():
        ratio = row["Feed"] / max(value for name, value in row.items() if name != "Feed")
        figures["gib_per_s"][f"{size} MiB"] = {**row, "ratio": ratio}
        table.add_row(f"{size} MiB", *(f"{value:.2f}" for value in row.values()), f"{ratio:.2f}")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
