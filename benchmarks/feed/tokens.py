"""Blocks of tokens from a memory map: what a loader adds to the copy, in microseconds a batch.

    python benchmarks/feed/tokens.py [--save] [--quick] [--only feed] [--seconds 0]

A file of 65,536 blocks of 4,097 uint32 is mapped, and read 8 blocks at a time in a random order. Taking the blocks of
a batch out of the map by `numpy.take` into an array that is used again, with indices that are there already, is the
bare loop; a loader's overhead is what a batch takes longer than that in the same round. The file is in the page cache.

DataLoader has 0 and 2 workers, and its usual collation or `__getitems__`, by which the data set takes a whole batch at
once. Grain reads by 0 and some threads, a sample or a whole batch at a time. Medians of five rounds in turn, each
loader in a process of its own. All shuffle, each in its own way, so the first batch is compared with the blocks that
its first words name.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _contest import Contest, Outcome, Report, feed_arguments, other_settings
from _peers import dataloader_end, grain_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

BLOCK, BATCH = 4097, 8


@dataclass(frozen=True)
class Blocks:
    """A mapped file; block `i` begins with the word `i`."""

    path: str

    @cached_property
    def map(self) -> npt.NDArray[np.uint32]:
        """The blocks."""
        return np.memmap(self.path, np.uint32, mode="r").reshape(-1, BLOCK)

    def __len__(self) -> int:
        return len(self.map)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
        block: npt.NDArray[np.uint32] = self.map[index]
        return block


class Whole(Blocks):
    """As a data set that takes a whole batch at once."""

    def __getitems__(self, indices: Sequence[int]) -> npt.NDArray[np.uint32]:
        blocks: npt.NDArray[np.uint32] = self.map[np.asarray(indices)]
        return blocks


class Epochs:
    """Epoch after epoch of a loader.

    Args:
        blocks: What it reads.
        loader: Gives an iterator when it is iterated.
        close: Lets go of workers.
    """

    def __init__(self, blocks: Blocks, loader: Any, close: Callable[[Any], None] = lambda _: None) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(loader)
        self._close = close
        first = np.asarray(next(self._batches))
        if first.shape != (BATCH, BLOCK) or not np.array_equal(first, blocks.map[first[:, 0]]):
            raise AssertionError("its first batch is not made of blocks")

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        for _ in range(steps):
            if next(self._batches, None) is None:
                self._batches = iter(self._loader)
                next(self._batches)

    def close(self) -> None:
        """As in `Variant`."""
        self._close(self._batches)


class Bare:
    """The copy alone."""

    def __init__(self, path: str) -> None:
        self._map = Blocks(path).map
        self._orders = np.random.default_rng(0).permutation(len(self._map)).reshape(-1, BATCH)
        self._out = np.empty((BATCH, BLOCK), np.uint32)

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        for step in range(steps):
            np.take(self._map, self._orders[step % len(self._orders)], axis=0, out=self._out, mode="clip")

    def close(self) -> None:
        """As in `Variant`."""


def feed(path: str, workers: int, depth: int) -> Epochs:
    from interlock import Feed  # noqa: PLC0415 - each loader is imported in its own process alone

    blocks = Blocks(path)
    made = Feed(blocks.map, batch_size=BATCH, shuffle=True, workers=workers, depth=depth)
    return Epochs(blocks, made, lambda _: made.close())


def dataloader(path: str, workers: int, *, whole: bool) -> Epochs:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*not writable.*")
    blocks = Whole(path) if whole else Blocks(path)
    loader = torch.utils.data.DataLoader(
        blocks,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=8 if workers else None,
        collate_fn=torch.from_numpy if whole else None,
    )
    return Epochs(blocks, loader, dataloader_end)


def grain(path: str, threads: int, *, whole: bool) -> Epochs:
    module = importlib.import_module("grain")
    blocks = Blocks(path)
    samples = module.MapDataset.source(blocks).shuffle(seed=0).repeat()
    read = module.ReadOptions(num_threads=threads, prefetch_buffer_size=16 if threads else 0)
    loader = samples.batch(BATCH).to_iter_dataset(read) if whole else samples.to_iter_dataset(read).batch(BATCH)
    return Epochs(blocks, loader, lambda batches: grain_end(batches)())


def makers(path: str) -> dict[str, dict[str, partial[Any]]]:
    """Return the loaders and their settings."""
    return {
        "numpy.take alone": {"": partial(Bare, path)},
        "DataLoader": {
            f"{workers} workers{', __getitems__' if whole else ''}": partial(
                dataloader, path, workers=workers, whole=whole
            )
            for workers in (0, 2)
            for whole in (False, True)
        },
        "Grain": {
            f"{threads} threads{', whole' if whole else ''}": partial(grain, path, threads=threads, whole=whole)
            for threads, whole in ((0, False), (0, True), (2, True), (16, False))
        },
        "Feed": {
            "inline": partial(feed, path, workers=0, depth=1),
            "1 thread": partial(feed, path, workers=1, depth=4),
            "2 threads": partial(feed, path, workers=2, depth=4),
        },
    }


def overhead_us(outcome: Outcome, bare: Outcome) -> float:
    """Return the median over the rounds of what a batch took longer than the bare loop's."""
    return statistics.median(own - base for own, base in zip(outcome.seconds, bare.seconds, strict=True)) * 1e6


def report_of(contest: Contest) -> Report:
    report = Report("feed-tokens", "Token blocks from a memory map", ("loader", "us a batch", "us over bare", "note"))
    bare = contest.best().get("numpy.take alone")
    for name, found in contest.outcomes.items():
        note = other_settings(found, lambda one: f"{one.median_s * 1e6:.1f}")
        if not found[0].seconds:
            report.rows.append((name, "", "", note))
            continue
        over = overhead_us(found[0], bare) if bare else 0.0
        found[0].extra["overhead_us"] = over
        report.rows.append((name, f"{found[0].median_s * 1e6:.1f}", f"{over:.1f}", note))
    contest.keep(report)
    return report


def goals(contest: Contest, report: Report) -> None:
    best = contest.best()
    ours = best.get("Feed")
    for peer in ("DataLoader", "Grain"):
        if ours and peer in best and "overhead_us" in ours.extra:
            more = ours.extra["overhead_us"] - best[peer].extra["overhead_us"]
            report.goal(f"overhead of Feed beyond that of {peer}", more, 0, at_most=True, unit=" us")


def main() -> None:
    given = feed_arguments(__doc__, blocks=(65536, "blocks in the file"), steps=(4000, "batches of one window"))
    if given.quick:
        given.blocks, given.steps = 4096, 1000
    with tempfile.TemporaryDirectory(prefix="interlock-tokens-") as folder:
        path = Path(folder) / "tokens.bin"
        blocks = np.memmap(path, np.uint32, mode="w+", shape=(given.blocks, BLOCK))
        blocks[:] = np.arange(BLOCK, dtype=np.uint32)
        blocks[:, 0] = np.arange(given.blocks)
        blocks.flush()
        contest = Contest(makers(str(path)))
        contest.hold(given, count=1 if given.quick else 5, steps=given.steps, warm=50)
    report = report_of(contest)
    goals(contest, report)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
