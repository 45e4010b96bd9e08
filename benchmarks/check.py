"""What checking costs: slowdown of a training step, and memory over many operations.

    python benchmarks/check.py [--quick] [--json FILE]

A training step of a two-layer MLP (AdamW, batch 64) is timed on the plain CPU and inside a simulation, in turn, in
one process; medians of the rounds. `all` is the sum over the default schedules (lazy, eager, starve for each stream,
eight of pct). The last table is the resident memory of a process after more and more operations under `lazy`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from interlock.check import simulate

WIDTHS = (64, 512)
ALL = ("lazy", "eager", "starve:default", *(f"pct:{seed}" for seed in range(8)))


def train(device: str, width: int, steps: int) -> float:
    """Return seconds of one step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    batch = torch.randn(64, width).to(device)
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss: torch.Tensor = net(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call] # torch publishes no type for it
        optimizer.step()
    loss.item()
    return (time.perf_counter() - began) / steps


def simulated(schedule: str, width: int, steps: int) -> float:
    """The same in a simulation."""
    with simulate(schedule):
        return train("cuda", width, steps)


def slowdowns(width: int, steps: int, rounds: int) -> dict[str, float]:
    """Return medians: milliseconds of a plain step, and how many times slower checking is."""
    plain: list[float] = []
    lazy: list[float] = []
    everything: list[float] = []
    train("cpu", width, 2)
    for _ in range(rounds):
        plain.append(train("cpu", width, steps))
        taken = [simulated(schedule, width, steps) for schedule in ALL]
        lazy.append(taken[0])
        everything.append(sum(taken))
    base = statistics.median(plain)
    return {
        "plain_ms": base * 1e3,
        "lazy": statistics.median(a / b for a, b in zip(lazy, plain, strict=True)),
        "all": statistics.median(a / b for a, b in zip(everything, plain, strict=True)),
    }


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / (1 << 20)


def memory(operations: int, points: int) -> list[tuple[int, float]]:
    """Return (operations so far, resident MiB) while small operations follow each other, with a wait now and then."""
    found = []
    with simulate("lazy"):
        value = torch.ones(16, device="cuda")
        for number in range(1, operations + 1):
            value = value * 1.0
            if number % 1000 == 0:
                value.sum().item()
            if number % (operations // points) == 0:
                found.append((number, resident_mib()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    steps, rounds, operations = (5, 1, 20_000) if arguments.quick else (30, 5, 1_000_000)
    figures: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads(), "step": {}}
    console = Console(width=100)
    table = Table("width", "plain step, ms", "lazy, times slower", "all schedules, times slower", title="Training step")
    for width in WIDTHS:
        row = figures["step"][str(width)] = slowdowns(width, steps, rounds)
        table.add_row(str(width), f"{row['plain_ms']:.2f}", f"{row['lazy']:.1f}", f"{row['all']:.0f}")
    console.print(table)
    table = Table("operations", "resident MiB", title="Memory under lazy")
    figures["memory"] = memory(operations, 5)
    for count, mib in figures["memory"]:
        table.add_row(f"{count:,}", f"{mib:.0f}")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
