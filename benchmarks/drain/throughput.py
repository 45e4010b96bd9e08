"""Rows to files: speed and memory of Interlock beside Lightning's prediction writers, a thread pool and Ray Data.

    python benchmarks/drain/throughput.py [--save] [--quick] [--only drain,pool] [--seconds 0] [--rounds 3]

Rows of three kinds (2 KB, 32 KB and 303 MB) are made in memory of their own, a step at a time, which costs a copy of
them, and are written until the files are complete. All writers take turns in every round, each in a process of its own,
and the tables have medians. Every row carries its id; in the first round all are read back, with the format's own
reader, and looked at: each must be there once. Two storages: the disk under the working directory, and `/dev/shm`,
which is memory, so that what counts there is the processor.

- `GB/s`: from the first step until the files are complete. Only what has `yes` under `synced` is on the disk by then.
- `on disk`: the same, but until all files are synced, which the script does for those that did not (four threads).
- `CPU s`: processor seconds a GB, making the rows included.
- `peak`: most memory in use during the first round, less what was in use before; the page cache does not count.

With a model: each step first takes as long as the disk needs for its rows (measured), while the processors are free, as
with a model on another device. What hides the writing takes little longer than the model alone. Memory: runs of one and
of four times as many rows, in fresh processes.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "feed"))
from _arena import Contestant, Order, Run, import_early
from _contest import Report, feed_arguments, storage_gb_per_s, wanted
from _rows import SMALL, WORKLOADS, Workload
from _writers import (
    Files,
    LightningBatch,
    LightningDrain,
    LightningEpoch,
    NumpyFile,
    OneParquetFile,
    ParquetFile,
    PlainDrain,
    Pool,
    RayData,
    TorchFile,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named to the reader as a storage that is no disk
OURS = "Drain"
BEGAN_S = time.perf_counter()
FACTOR = 4
HIDDEN = ("Lightning batch: np.save", "pool of 4: np.save", "Drain: npy", "DrainWriter: npy")
"""Writers that are run with a model."""
GROWING = ("Lightning epoch: torch.save", "pool of 4: np.save", "Drain: npy", "Drain: parquet")
"""Writers that are run with more rows."""


def makers() -> dict[str, partial[Any]]:
    """Return the writers."""
    synced = Files(NumpyFile(synced=True), synced=True)
    return {
        "Lightning batch: torch.save": partial(LightningBatch, Files(TorchFile())),
        "Lightning batch: np.save": partial(LightningBatch, Files(NumpyFile())),
        "Lightning batch: np.save + fsync": partial(LightningBatch, synced),
        "Lightning batch: one ParquetWriter": partial(LightningBatch, OneParquetFile()),
        "Lightning epoch: torch.save": partial(LightningEpoch, TorchFile()),
        "Lightning epoch: np.save": partial(LightningEpoch, NumpyFile()),
        "pool of 4: np.save": partial(Pool, Files(NumpyFile())),
        "pool of 4: np.save + fsync": partial(Pool, synced),
        "pool of 4: pq.write_table": partial(Pool, Files(ParquetFile())),
        "Ray Data: write_parquet": partial(RayData),
        "Drain: npy": partial(PlainDrain, "npy"),
        "Drain: npy + borrow": partial(PlainDrain, "npy", borrow=True),
        "Drain: npy + borrow, no fsync": partial(PlainDrain, "npy", borrow=True, fsync="never"),
        "Drain: npy, 2 writers": partial(PlainDrain, "npy", writers=2),
        "Drain: parquet": partial(PlainDrain, "parquet"),
        "DrainWriter: npy": partial(LightningDrain, "npy"),
        "DrainWriter: parquet": partial(LightningDrain, "parquet"),
    }


def is_parquet(name: str) -> bool:
    """Tell whether a writer makes Parquet files."""
    return any(word in name for word in ("parquet", "Parquet", "pq."))


@dataclass
class Found:
    """What a writer reached with one kind of rows on one storage.

    Attributes:
        workload: The rows.
        runs: One a round.
        note: Why there are no more.
    """

    workload: Workload
    runs: list[Run] = field(default_factory=list)
    note: str = ""

    @property
    def gb_per_s(self) -> float:
        """Until the files are complete."""
        return float(self.workload.run_bytes / statistics.median(run.wall_s for run in self.runs) / 1e9)

    @property
    def stored_gb_per_s(self) -> float:
        """Until they are on the storage."""
        return float(self.workload.run_bytes / statistics.median(run.wall_s + run.sync_s for run in self.runs) / 1e9)

    @property
    def used_s_per_gb(self) -> float:
        """Processor time."""
        return float(statistics.median(run.used_s for run in self.runs) / self.workload.run_bytes * 1e9)

    @property
    def peak_mb(self) -> float:
        """Memory, in the first round."""
        return float(self.runs[0].peak_bytes / 1e6)

    def figures(self) -> dict[str, Any]:
        """Return all for the JSON."""
        if not self.runs:
            return {"note": self.note}
        return {
            "gb_per_s": self.gb_per_s,
            "stored_gb_per_s": self.stored_gb_per_s,
            "used_s_per_gb": self.used_s_per_gb,
            "peak_mb": self.peak_mb,
            "runs": [asdict(run) for run in self.runs],
        }


def hold(chosen: Mapping[str, partial[Any]], workload: Workload, given: Any) -> dict[str, dict[str, Found]]:
    """Let all writers write one kind of rows, in turn; return storage to writer to what it reached."""
    running: dict[str, Contestant] = {}
    found = {storage: {name: Found(workload) for name in chosen} for storage in storages()}
    try:
        for name, make in chosen.items():
            try:
                running[name] = Contestant(make)
            except Exception as error:  # noqa: BLE001 - a peer that is not installed is a row of the table
                _lose(found, name, error)
        for storage, place in storages().items():
            for number in range(given.rounds if storage == "disk" else max(1, given.rounds - 1)):
                if number and given.seconds and time.perf_counter() - BEGAN_S > given.seconds:
                    break
                order = Order(workload, place, read=not number)
                for name in _turn(list(running), number):
                    try:
                        found[storage][name].runs.append(running[name].run(order))
                        _tell(workload, storage, name, found[storage][name])
                    except Exception as error:  # noqa: BLE001 - as above
                        running.pop(name).end()
                        _lose(found, name, error)
    finally:
        for contestant in running.values():
            contestant.end()
    return found


def _tell(workload: Workload, storage: str, name: str, one: Found) -> None:
    """Show on stderr how far the contest is."""
    print(
        f"{time.perf_counter() - BEGAN_S:4.0f} s  {workload.name}, {storage}, {name}: {one.gb_per_s:.2f}",
        file=sys.stderr,
    )


def storages() -> dict[str, Path]:
    """Return the places to write to."""
    found = {"disk": Path.cwd()}
    if SHARED_MEMORY.is_dir():
        found[str(SHARED_MEMORY)] = SHARED_MEMORY
    return found


def _turn(names: list[str], number: int) -> list[str]:
    """Return the names in the order of a round: each begins somewhere else."""
    start = number * len(names) // 3 % len(names) if names else 0
    return names[start:] + names[:start]


def _lose(found: Mapping[str, Mapping[str, Found]], name: str, error: Exception) -> None:
    for outcomes in found.values():
        outcomes[name].runs.clear()
        outcomes[name].note = f"not run: {str(error).splitlines()[0][:100]}"


def add_table(report: Report, workload: Workload, found: Mapping[str, Mapping[str, Found]]) -> None:
    """Add rows for one kind of rows, and say how the best of ours stands to the best of the others."""
    for storage, outcomes in found.items():
        for name, one in outcomes.items():
            cells = ("", "", "", "", "", one.note)
            if one.runs:
                stored = f"{one.stored_gb_per_s:.2f}" if storage == "disk" else ""
                synced = ("yes" if one.runs[0].synced else "no") if storage == "disk" else ""
                cells = (f"{one.gb_per_s:.2f}", synced, stored, f"{one.used_s_per_gb:.1f}", f"{one.peak_mb:,.0f}", "")
            report.rows.append((workload.name.partition(",")[0], storage, name, *cells))
        _compare(report, workload, storage, outcomes)
        report.figures.setdefault(workload.name, {})[storage] = {name: one.figures() for name, one in outcomes.items()}


def _compare(report: Report, workload: Workload, storage: str, outcomes: Mapping[str, Found]) -> None:
    """State the best of ours against the best of the others, over all formats and over Parquet alone."""
    for kind in ("any format", "Parquet"):
        ran = {name: one for name, one in outcomes.items() if one.runs and (kind != "Parquet" or is_parquet(name))}
        speed = {name: one.stored_gb_per_s if storage == "disk" else one.gb_per_s for name, one in ran.items()}
        ours = {name: value for name, value in speed.items() if name.startswith(OURS)}
        others = {name: value for name, value in speed.items() if not name.startswith(OURS)}
        if ours and others:
            mine, other = max(ours, key=ours.__getitem__), max(others, key=others.__getitem__)
            what = f"{workload.name.partition(',')[0]}, {storage}, {kind}: {mine} / {other}"
            report.goal(what, ours[mine] / others[other], 1.0, at_most=False)


def add_hidden(report: Report, names: Sequence[str], workload: Workload, disk_gb_per_s: float) -> None:
    """Run with a model that takes as long as the disk does, and say how much of the writing it hides."""
    model_s = workload.step_bytes / disk_gb_per_s / 1e9
    alone_s = model_s * workload.steps
    for name in names:
        with _contestant(name, report) as contestant:
            if contestant is None:
                continue
            run = contestant.run(Order(workload, Path.cwd(), model_s, read=False))
            taken = run.wall_s + run.sync_s
            report.lines.append(
                f"{workload.name.partition(',')[0]} with a model of {model_s * 1e3:.1f} ms a step, on disk: {name}: "
                f"{taken / alone_s:.2f} of the model alone"
            )
            report.figures.setdefault("with a model", {}).setdefault(workload.name, {})[name] = taken / alone_s


def add_growth(report: Report, names: Sequence[str], workload: Workload) -> None:
    """Say how the peak grows with the rows."""
    for name in names:
        peaks = []
        for factor in (1, FACTOR):
            with _contestant(name, report) as contestant:
                if contestant is not None:
                    run = contestant.run(Order(workload.times(factor), Path.cwd(), read=False))
                    peaks.append(run.peak_bytes / 1e6)
        if len(peaks) == len((1, FACTOR)):
            report.lines.append(
                f"{workload.name.partition(',')[0]}, peak of {workload.run_bytes / 1e9:.2f} GB of rows and of "
                f"{FACTOR} times as many: {name}: {peaks[0]:,.0f} and {peaks[1]:,.0f} MB"
            )
            report.figures.setdefault("growth", {}).setdefault(workload.name, {})[name] = peaks


@contextmanager
def _contestant(name: str, report: Report) -> Iterator[Contestant | None]:
    try:
        contestant = Contestant(makers()[name])
    except Exception as error:  # noqa: BLE001 - as above
        report.lines.append(f"{name}: not run: {error}")
        yield None
        return
    try:
        yield contestant
    finally:
        contestant.end()


def main() -> None:
    given = feed_arguments(__doc__, rounds=(3, "rounds on the disk; one less in memory"))
    workloads = SMALL if given.quick else WORKLOADS
    if given.quick:
        given.rounds = 1
    chosen = {name: make for name, make in makers().items() if name in wanted(list(makers()), given.only)}
    lightning = ["pytorch_lightning"] if any("Lightning" in name or "DrainWriter" in name for name in chosen) else []
    import_early(["torch", "pyarrow.parquet", "interlock.drain", *lightning])
    columns = ("rows", "storage", "writer", "GB/s", "synced", "on disk", "CPU s", "peak MB", "note")
    report = Report("drain-throughput", "Rows to files", columns)
    disk = 0.0
    for storage, place in storages().items():
        rates = [storage_gb_per_s(place, threads, (32 if given.quick else 1024) << 20) for threads in (1, 4)]
        disk = disk or max(rates)
        report.figures.setdefault("storage_gb_per_s", {})[storage] = rates
        report.lines.append(
            f"{storage}: plain writes of 16 MB, then fsync: {rates[0]:.2f} GB/s with one thread, {rates[1]:.2f} with 4"
        )
    for workload in workloads:
        add_table(report, workload, hold(chosen, workload, given))
    for workload in (workloads[1], workloads[2]):
        add_hidden(report, [name for name in HIDDEN if name in chosen], workload, disk)
    for workload in (workloads[0], replace(workloads[2], steps=max(1, workloads[2].steps // 2))):
        add_growth(report, [name for name in GROWING if name in chosen], workload)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
