"""How long it takes to know what is left of a hundred million rows, and how much memory that takes.

    python benchmarks/drain_todo.py [--rows 100000000] [--shard-rows 65536] [--strings 1000000] [--way shuffled]
        [--json FILE]

For each way in which half of the rows can be committed, a folder is made whose manifest says so (with shards of the
size that it says, but without content: what is left is known from the manifest alone). Then a process of its own opens
it and asks for what is left for rank 1 of 3 and for all. Its figures:

- `open`: reading and checking the manifests, on which shards there are, and the ids into a set;
- `todo`: from there to the sequence of what is left for everybody;
- `peak`: the most memory that the process had (`VmHWM`), the interpreter and NumPy with it, and what of it was there
  before the folder was opened.

Ways: `prefix`, the first half; `every other`; `random`, a random half, done in order; `shuffled`, a random half, done
in random order, so that each shard has ids from everywhere: there the manifest itself is large.

Strings are read from the shards, so theirs are written: half of them by a drain, with a value of four bytes each. The
figures are as above (here `before` has the list of all names in it, which is the caller's), and `put`, the time that
the drain took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from interlock.drain import Drain
from interlock.drain._folder import Folder
from interlock.drain._idcodes import encode_ids
from interlock.drain._layout import Layout
from interlock.drain._manifest import ShardRecord
from interlock.drain._run import RunRecord

READER = r"""
import json, sys, time

import numpy as np

from interlock.drain import read_committed
from interlock.drain._holdings import Holdings
from interlock.drain._run import RunRecord
from interlock.drain._storage import opened_storage
from interlock.drain._todo import todo

def peak_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

sink, rows = sys.argv[1], int(sys.argv[2])
format_of_it, storage = opened_storage(sink)
before = peak_kb()
start = time.perf_counter()
held = Holdings(sink, format_of_it, storage)
held.load(RunRecord.read(storage))
opened = time.perf_counter()
left = todo(range(rows), held.committed, 0, 1)
known = time.perf_counter()
mine = todo(range(rows), held.committed, 1, 3)
print(json.dumps({
    "committed": len(held.committed), "left": len(left), "left_of_rank_1_of_3": len(mine),
    "open_s": opened - start, "todo_s": known - opened, "total_s": known - start,
    "peak_mb": peak_kb() / 1000, "before_mb": before / 1000,
    "checks": [int(left[k]) for k in (0, len(left) // 2, -1)],
}))
"""

STRINGS = r"""
import json, sys, time

from interlock.drain import Drain

def peak_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

sink, count = sys.argv[1], int(sys.argv[2])
names = [f"images/{n:09d}.jpg" for n in range(count)]
before = peak_kb()
start = time.perf_counter()
drain = Drain(sink)
opened = time.perf_counter()
left = drain.todo(names, rank=0, world=1)
known = time.perf_counter()
drain.close()
assert list(left) == names[count // 2 :]
print(json.dumps({
    "committed": len(drain.committed), "left": len(left),
    "open_s": opened - start, "todo_s": known - opened, "total_s": known - start,
    "set_mb": drain.committed.ids._texts.size_bytes / 1e6,
    "peak_mb": peak_kb() / 1000, "before_mb": before / 1000,
}))
"""


WAYS = ("prefix", "every other", "random", "shuffled")


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    busy = os.getloadavg()[0]
    return {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count(), "load": busy}


def halves(rows: int, way: str) -> np.ndarray:
    """Return half of the rows, in the order in which they were done."""
    if way == "prefix":
        return np.arange(rows // 2, dtype=np.int64)
    if way == "every other":
        return np.arange(0, rows, 2, dtype=np.int64)
    chance = np.random.default_rng(0)
    flags = np.zeros(rows, np.bool_)
    flags[: rows // 2] = True
    chance.shuffle(flags)
    done = np.flatnonzero(flags)
    if way == "shuffled":
        chance.shuffle(done)
    return done


def make(folder: Path, rows: int, shard_rows: int, way: str) -> int:
    """Make a folder whose manifest says that half of the rows are done; return the bytes of the manifest."""
    place = Folder(folder, Layout(".parquet"))
    place.make()
    run = RunRecord.new("parquet", None, rows)
    run.save(place)
    done = halves(rows, way)
    with place.path(place.layout.manifest).open("wb") as file:
        for number, start in enumerate(range(0, len(done), shard_rows)):
            ids = done[start : start + shard_rows]
            name = place.layout.shard_name(run.run, number)
            with (folder / name).open("wb") as shard:
                shard.truncate(8 * len(ids))
            file.write(ShardRecord(name, len(ids), 8 * len(ids), "0" * 64, encode_ids(ids)).line())
    return place.path(place.layout.manifest).stat().st_size


def measured(rows: int, shard_rows: int, way: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="interlock-todo-") as name:
        folder = Path(name) / "out"
        size_bytes = make(folder, rows, shard_rows, way)
        command = [sys.executable, "-c", READER, f"parquet:{folder}", str(rows)]
        found: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    left = np.setdiff1d(np.arange(rows, dtype=np.int64), halves(rows, way), assume_unique=True)
    assert found["left"] == len(left), found
    assert found["left_of_rank_1_of_3"] == int((left % 3 == 1).sum()), found
    assert found["checks"] == [int(left[k]) for k in (0, len(left) // 2, -1)], found
    return {"way": way, "manifest_mb": size_bytes / 1e6, **found}


def measured_strings(count: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="interlock-todo-") as name:
        sink, step = f"parquet:{name}/out", 10_000
        batches = (range(first, min(first + step, count // 2)) for first in range(0, count // 2, step))
        start = time.perf_counter()
        with Drain(sink) as drain:
            for batch in batches:
                drain.put([f"images/{number:09d}.jpg" for number in batch], np.zeros(len(batch), np.float32))
        put_s = time.perf_counter() - start
        command = [sys.executable, "-c", STRINGS, sink, str(count)]
        found: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {"strings": count, "put_s": put_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shard-rows", type=int, default=1 << 16)
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way of ranges; may be given again")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    names = ("manifest_mb", "open_s", "todo_s", "total_s", "peak_mb", "before_mb")
    table = Table("committed half", *names, title=f"what is left of {arguments.rows:,} rows")
    figures = []
    for way in arguments.way or WAYS:
        found = measured(arguments.rows, arguments.shard_rows, way)
        figures.append(found)
        table.add_row(way, *(f"{found[name]:,.2f}" for name in names))
    Console().print(table)
    report: dict[str, object] = {"shard_rows": arguments.shard_rows, "machine": machine(), "ranges": figures}
    if arguments.strings:
        report["strings"] = strings = measured_strings(arguments.strings)
        names = ("put_s", "open_s", "todo_s", "set_mb", "peak_mb", "before_mb")
        table = Table("strings", *names, title="half of them committed")
        table.add_row(f"{arguments.strings:,}", *(f"{strings[name]:,.2f}" for name in names))
        Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
