"""Kill `interlock predict` at random instants, resume it, and count what is lost, doubled or wrong.

    python benchmarks/chaos.py [--runs 200] [--kills 2] [--jobs 2] [--seed 0] [--sinks parquet,npy,…] [--json FILE]

Each run predicts 4,000 rows into some forty shards, of each file sink in turn. It is killed with SIGKILL at an
instant drawn over the length of a whole run, started again and killed again (`--kills` times), and then run to its
end. After each kill the folder must show every row at most once with the right value, to a reader that knows nothing
of Interlock; in the end every row exactly once, and `interlock verify` must agree.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import zarr
from pyarrow import feather
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

ROWS, WIDTH = 4000, 24
MODEL = """
import time


def model(batch):
    time.sleep(0.002)
    return {"total": batch.sum(axis=1), "double": batch * 2}
"""


@dataclass
class Outcome:
    """What one run of kills and resumes showed."""

    problems: list[str] = field(default_factory=list)
    killed: int = 0
    finished_early: int = 0
    rows_kept: list[int] = field(default_factory=list)


NAMES = ("id", "total", "double")


def from_table(table: Any) -> Any:
    columns = [np.array(table[name].to_pylist()) for name in NAMES]
    return columns[0].astype(np.int64), columns[1].astype(np.float32), columns[2].astype(np.float32)


def from_zarr(shard: Path) -> Any:
    group: Any = zarr.open_group(str(shard), mode="r")
    return tuple(np.asarray(group[name][:]) for name in NAMES)


def from_safetensors(shard: Path) -> Any:
    tensors = load_file(shard)
    return tuple(tensors[name] for name in NAMES)


def from_tar(shard: Path) -> Any:
    """Return ids, in the order of the members, and what the members of each output hold."""
    found: dict[str, list[Any]] = {"total": [], "double": []}
    ids = []
    with tarfile.open(shard) as tar:
        for member in tar:
            key, _, name = member.name.partition(".")
            content = tar.extractfile(member)
            if name and content is not None:
                found[name.removesuffix(".npy")].append(np.load(io.BytesIO(content.read()), allow_pickle=False))
                ids.append(int(key))
    return np.array(ids[::2], np.int64), np.stack(found["total"]), np.stack(found["double"])


READERS: dict[str, Callable[[Path], Any]] = {
    "parquet": lambda shard: from_table(pq.read_table(shard)),
    "npy": lambda shard: tuple(np.load(shard / f"{name}.npy", allow_pickle=False) for name in NAMES),
    "arrow": lambda shard: from_table(feather.read_table(shard)),
    "safetensors": from_safetensors,
    "zarr": from_zarr,
    "webdataset": from_tar,
}
"""How somebody reads a shard who knows nothing of Interlock: ids and both outputs."""


class Job:
    """One sink, from its first start to its end."""

    def __init__(self, folder: Path, data: npt.NDArray[np.float32], scheme: str, chance: random.Random) -> None:
        self.folder = folder
        self.data = data
        self.scheme = scheme
        self.chance = chance
        self.sink = folder / "out"
        self.outcome = Outcome()
        np.save(folder / "rows.npy", data)
        (folder / "model.py").write_text(MODEL)

    def command(self, verb: str) -> list[str]:
        """Return the command line of `interlock VERB` for this sink."""
        sink = f"{self.scheme}:{self.sink}"
        if verb == "verify":
            return [sys.executable, "-m", "interlock", "verify", sink]
        source = [f"{self.folder}/model.py:model", f"{self.folder}/rows.npy", sink]
        return [sys.executable, "-m", "interlock", verb, *source, "--batch-size=20", "--shard-bytes=10000", "--quiet"]

    def start_and_kill(self, whole_s: float) -> None:
        """Start the job and kill it somewhere; begin again with an empty sink if it ended before."""
        while True:
            child = subprocess.Popen(
                self.command("predict"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            try:
                _, error = child.communicate(timeout=self.chance.uniform(0, whole_s))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.communicate()
                self.outcome.killed += 1
                self.check(complete=False)
                return
            self.outcome.finished_early += 1
            if child.returncode:
                self.outcome.problems.append(f"ended with {child.returncode}: {error.strip()[-300:]}")
                return
            shutil.rmtree(self.sink)

    def finish(self) -> float:
        """Run the job to its end; return how long that took."""
        began = time.perf_counter()
        done = subprocess.run(self.command("predict"), capture_output=True, text=True, check=False)
        took = time.perf_counter() - began
        if done.returncode:
            self.outcome.problems.append(f"the last run ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        self.check(complete=True)
        verified = subprocess.run(self.command("verify"), capture_output=True, text=True, check=False)
        if verified.returncode:
            self.outcome.problems.append(f"verify: {verified.stdout.strip()[-300:]}")
        return took

    def check(self, *, complete: bool) -> None:
        """Read the folder as a stranger would."""
        ids, total, double = self.read()
        self.outcome.rows_kept.append(len(ids))
        doubled = sum(count - 1 for count in Counter(ids.tolist()).values())
        if doubled:
            self.outcome.problems.append(f"{doubled} rows doubled")
        if complete and len(set(ids.tolist())) != ROWS:
            self.outcome.problems.append(f"{ROWS - len(set(ids.tolist()))} rows lost")
        if len(ids) and not (
            np.array_equal(total, self.data[ids].sum(axis=1)) and np.array_equal(double, self.data[ids] * 2)
        ):
            self.outcome.problems.append("wrong values")

    def read(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return ids and both outputs of every visible row, without Interlock's help."""
        if not self.sink.is_dir():
            return np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, WIDTH), np.float32)
        columns = [READERS[self.scheme](shard) for shard in sorted(self.sink.glob("part-*"))]
        columns.append((np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, WIDTH), np.float32)))
        ids, total, double = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        return ids, total, double.reshape(-1, WIDTH)


def run(number: int, seed: int, kills: int, whole_s: float, schemes: Sequence[str]) -> Outcome:
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - instants, not secrets
    data = np.random.default_rng(number).integers(0, 1000, (ROWS, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="interlock-chaos-") as folder:
        job = Job(Path(folder), data, schemes[number % len(schemes)], chance)
        for _ in range(kills):
            job.start_and_kill(whole_s)
        job.finish()
    return job.outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2, help="kills in each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--sinks", default=",".join(READERS), help="which, in turn")
    arguments = parser.parse_args()
    schemes = arguments.sinks.split(",")
    data = np.random.default_rng(0).integers(0, 1000, (ROWS, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="interlock-chaos-") as folder:
        whole_s = Job(Path(folder), data, schemes[0], random.Random(0)).finish()  # noqa: S311 - as above
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(
            pool.map(
                lambda n: run(n, arguments.seed, arguments.kills, whole_s * arguments.jobs / 2, schemes),
                range(arguments.runs),
            )
        )
    problems = [f"run {n} (seed {arguments.seed}): {p}" for n, o in enumerate(outcomes) for p in o.problems]
    middle = sum(0 < rows < ROWS for o in outcomes for rows in o.rows_kept)
    figures = {
        "runs": len(outcomes),
        "kills": sum(o.killed for o in outcomes),
        "ended before the kill": sum(o.finished_early for o in outcomes),
        "kills with part of the rows committed": middle,
        "runs with rows lost, doubled or wrong": sum(bool(o.problems) for o in outcomes),
    }
    table = Table("figure", "count", title=f"interlock predict, killed and resumed ({ROWS} rows a run)")
    for name, count in figures.items():
        table.add_row(name, str(count))
    Console().print(table)
    for problem in problems:
        print(problem)
    if arguments.json:
        arguments.json.write_text(json.dumps({**figures, "problems": problems}, indent=2) + "\n")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
