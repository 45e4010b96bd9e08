"""A list of 1.2 million paths: time from the listing to the first batch, and memory of the workers.

    python benchmarks/feed/startup.py [--save] [--quick] [--only feed]

Each loader gets the same list of strings in a fresh process that has imported it. The clock runs from making the
loader, which shuffles, to its first batch of 64; then 500 batches are read in random order, so that workers that were
forked have touched what they touch, and memory is counted: proportional set size (PSS, which shares out pages that
several processes have) of each worker process, and what all processes together have more than the one with the list and
the imported library had before. A sample is eight bytes of its path: no file is opened. Medians of five, in turn.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

BATCH = 64
MB = 1e6
WORKERS = 2
GOAL_S = 1.0


class Paths:
    """Samples by path."""

    def __init__(self, number: int) -> None:
        self.paths = [
            f"/data/imagenet/train/n{index // 1300:08}/n{index // 1300:08}_{index}.JPEG" for index in range(number)
        ]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(bytearray(self.paths[index][-13:-5], "ascii"), np.uint8)


@dataclass
class Start:
    """What one start showed.

    Attributes:
        first_s: Seconds to the first batch.
        worker_mb: PSS of each worker process.
        more_mb: PSS that all processes have more than before.
    """

    first_s: float
    more_mb: float
    worker_mb: list[float] = field(default_factory=list)


def pss_mb(process: int) -> float:
    """Return the proportional set size of a process."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / MB


def helpers() -> list[int]:
    """Return the processes below this one that work: not the resource tracker of `multiprocessing`."""
    everyone = importlib.import_module("_contest").descendants(os.getpid())
    return [number for number in everyone if "resource_tracker" not in Path(f"/proc/{number}/cmdline").read_text()]


def feed(paths: Paths, workers: int | str) -> tuple[Iterator[Any], Callable[[], None]]:
    from interlock import Feed  # noqa: PLC0415 - each loader is imported in its own process alone

    made = Feed(paths, batch_size=BATCH, workers=workers, shuffle=True)
    return iter(made), made.close


def dataloader(paths: Paths, method: str) -> tuple[Iterator[Any], Callable[[], None]]:
    torch = importlib.import_module("torch")
    loader = torch.utils.data.DataLoader(
        paths, batch_size=BATCH, shuffle=True, num_workers=WORKERS, multiprocessing_context=method
    )
    batches = iter(loader)
    return batches, partial(importlib.import_module("_peers").dataloader_end, batches)


def grain(paths: Paths, *, processes: bool) -> tuple[Iterator[Any], Callable[[], None]]:
    module = importlib.import_module("grain")
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()
    read = module.ReadOptions(num_threads=1 if processes else WORKERS, prefetch_buffer_size=4 * BATCH)
    dataset = module.MapDataset.source(paths).shuffle(seed=0).to_iter_dataset(read).batch(BATCH)
    if processes:
        dataset = dataset.mp_prefetch(module.MultiprocessingOptions(num_workers=WORKERS))
    batches = iter(dataset)
    close: Callable[[], None] = importlib.import_module("_peers").grain_end(batches)
    return batches, close


def start(make: partial[Any], library: str, number: int, batches: int) -> Start:
    """Make a loader and read from it; runs in a process of its own."""
    importlib.import_module(library)
    importlib.import_module("_peers")
    paths = Paths(number)
    before = pss_mb(os.getpid())
    began = time.perf_counter()
    iterator, close = make(paths)
    first = next(iterator)
    first_s = time.perf_counter() - began
    if np.asarray(first).shape != (BATCH, 8):
        raise AssertionError(f"its first batch is {np.asarray(first).shape}")
    for _ in range(min(batches, number // BATCH - 1)):
        next(iterator)
    workers = [pss_mb(process) for process in helpers()]
    found = Start(first_s, pss_mb(os.getpid()) + sum(workers) - before, workers)
    close()
    return found


LOADERS = {
    "Feed, threads": (partial(feed, workers=WORKERS), "interlock.feed"),
    "Feed, processes": (partial(feed, workers=f"processes:{WORKERS}"), "interlock.feed"),
    "DataLoader, fork": (partial(dataloader, method="fork"), "torch"),
    "DataLoader, spawn": (partial(dataloader, method="spawn"), "torch"),
    "Grain, threads": (partial(grain, processes=False), "grain"),
    "Grain, processes": (partial(grain, processes=True), "grain"),
}


def measure(given: Any) -> tuple[dict[str, list[Start]], dict[str, str]]:
    """Start every loader once a round; return what was found, and why some could not start."""
    from _contest import in_process, wanted  # noqa: PLC0415 - see `main`

    found: dict[str, list[Start]] = {name: [] for name in wanted(list(LOADERS), given.only)}
    failed: dict[str, str] = {}
    for _ in range(1 if given.quick else 5):
        for name in [name for name in found if name not in failed]:
            make, library = LOADERS[name]
            try:
                found[name].append(in_process(partial(start, make, library, given.paths, given.batches)))
            except RuntimeError as error:
                failed[name] = f"not run: {str(error).splitlines()[0][:160]}"
    return found, failed


def main() -> None:
    from _contest import Report, feed_arguments  # noqa: PLC0415 - every worker that is spawned runs this file once more

    given = feed_arguments(
        __doc__, paths=(1_200_000, "paths"), batches=(500, "batches that are read before memory is counted")
    )
    if given.quick:
        given.batches = 50
    columns = ("loader", "first batch, s", "MB a worker process", "MB more in all", "note")
    report = Report("feed-startup", f"{given.paths:,} paths, {WORKERS} workers", columns)
    found, failed = measure(given)
    for name, starts in found.items():
        if name in failed:
            report.rows.append((name, "", "", "", failed[name]))
            continue
        first_s, more = (statistics.median(getattr(one, part) for one in starts) for part in ("first_s", "more_mb"))
        workers = statistics.median(max(one.worker_mb, default=0.0) for one in starts)
        shown = f"{workers:.0f}" if workers else "threads"
        report.rows.append((name, f"{first_s:.3f}", shown, f"{more:.0f}", ""))
        report.figures[name] = {"first_s": [one.first_s for one in starts], "more_mb": more, "worker_mb": workers}
        if name.startswith("Feed"):
            report.goal(f"{name}: first batch", first_s, GOAL_S, at_most=True, unit=" s")
    report.show(save=given.save)


if __name__ == "__main__":
    main()
