"""Break a drain in every way that a storage and a process can break, and count what is lost, doubled or wrong.

    python benchmarks/chaos.py [--runs 200] [--jobs 2] [--seed 0] [--sinks parquet,npy,…] [--json FILE] [--save]

Each run has a folder of its own, of each file sink in turn, and a fault, of each kind in turn. A process writes 160
rows into some sixteen shards and meets the fault; another goes on and meets it again, at another place (`--launches`
times); then one without. Every other round of runs does it through `interlock predict`, and every third with
`fsync="never"`; some have three writers. The faults are:

- kill at a step: `kill -9` in place of any step of the protocol;
- kill at any instant: `kill -9` from outside, at an instant drawn over the length of a whole job;
- full disk, no inodes: a tmpfs of some dozen kilobytes, or files, which has more for the next process;
- read-only: the folder of what is being written becomes a read-only file system, at any step;
- the sink raises: the format raises while it writes or closes;
- fsync fails: one `fsync` returns an error, as a disk gives it once.

Where mounting is not allowed (`unshare`), full disks are limits on the size of a file (`RLIMIT_FSIZE`) and read-only is
an error that is raised; then the table says so.

After each process: what it was told is committed must be there; no row may be there twice, and each value must be
right, to a reader that knows nothing of Interlock. In the end each row must be there once, `verify` must agree, and
nothing may be in quarantine, unless an `fsync` failed: then a shard without a record, and so doubtful, may be.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import io
import os
import random
import resource
import signal
import subprocess
import tarfile
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from _chaos import break_at, check_ids, die, end_with, ended, forked, installed_sinks, refuse, serve, served  # type: ignore[import-not-found]
from interlock.cli import main as command_line
from interlock.drain import Drain, _publish

if TYPE_CHECKING:
    from collections.abc import Callable


ROWS = 160
BATCH = 8
WIDTH = 4
SHARD_BYTES = 500
FAULTS = (
    "kill at a step",
    "kill at any instant",
    "full disk",
    "no inodes",
    "read-only",
    "the sink raises",
    "fsync fails",
)
MOUNTED = {"full disk", "no inodes", "read-only"}
INSIDE = ("unshare", "--user", "--map-root-user", "--mount")
SAVED = Path(__file__).parent / "results" / "chaos.json"
_MODEL = """
def model(batch):
    return {"half": batch[:, 0] * 0.5, "row": batch}
"""
_SYSTEM = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _DETACH = 1, 2


def mount(path: Path, options: str, flags: int = 0) -> None:
    """Mount a tmpfs."""
    if _SYSTEM.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount a tmpfs at {path}")


def unmount(path: Path) -> None:
    """Take away what was mounted."""
    _SYSTEM.umount2(os.fsencode(path), _DETACH)


# ---------------------------------------------------------------- how a stranger reads


def from_parquet(shard: Path) -> Any:
    import pyarrow.parquet as pq  # noqa: PLC0415 - each reader needs its library only

    return from_table(pq.read_table(shard))


def from_arrow(shard: Path) -> Any:
    from pyarrow import feather  # noqa: PLC0415 - as above

    return from_table(feather.read_table(shard))


def from_table(table: Any) -> Any:
    return tuple(np.array(table[name].to_pylist()) for name in ("id", "half", "row"))


def from_npy(shard: Path) -> Any:
    return tuple(np.load(shard / f"{name}.npy", allow_pickle=False) for name in ("id", "half", "row"))


def from_zarr(shard: Path) -> Any:
    import zarr  # noqa: PLC0415 - as above

    group: Any = zarr.open_group(str(shard), mode="r")
    return tuple(np.asarray(group[name][:]) for name in ("id", "half", "row"))


def from_safetensors(shard: Path) -> Any:
    from safetensors.numpy import load_file  # noqa: PLC0415 - as above

    tensors = load_file(shard)
    return tuple(tensors[name] for name in ("id", "half", "row"))


def from_tar(shard: Path) -> Any:
    found: dict[str, list[Any]] = {"half": [], "row": []}
    ids = []
    with tarfile.open(shard) as tar:
        for member in tar:
            key, _, name = member.name.partition(".")
            content = tar.extractfile(member)
            if name and content is not None:
                found[name.removesuffix(".npy")].append(np.load(io.BytesIO(content.read()), allow_pickle=False))
                ids.append(int(key))
    return np.array(ids[::2], np.int64), np.stack(found["half"]), np.stack(found["row"])


def from_delta(table: Path) -> Any:
    from deltalake import DeltaTable  # noqa: PLC0415 - as above

    return from_table(DeltaTable(str(table)).to_pyarrow_table())


def parts_of(scheme: str, root: Path) -> list[Path]:
    """Return what a stranger reads, one after the other: shards, or the table as its log says it is."""
    if scheme == "delta":
        return [root] if any(root.glob("_delta_log/*.json")) else []
    return sorted(root.glob("part-*"))


READERS: dict[str, Callable[[Path], Any]] = {
    "parquet": from_parquet,
    "arrow": from_arrow,
    "npy": from_npy,
    "safetensors": from_safetensors,
    "zarr": from_zarr,
    "webdataset": from_tar,
    "delta": from_delta,
}


def check(sink: str, promised: set[int], seen: Path, *, complete: bool, doubts: bool) -> None:
    """Read what is visible; raise with what is wrong. With `doubts`, whole shards may have been set aside."""
    scheme, _, place = sink.partition(":")
    root = Path(place)
    counts: Counter[int] = Counter()
    for shard in parts_of(scheme, root):
        ids, half, row = READERS[scheme](shard)
        counts.update(ids.tolist())
        right = np.array_equal(half, ids * 0.5) and (row == ids[:, None]).all() and row.shape == (len(ids), WIDTH)
        assert not len(ids) or right, f"wrong values in {shard.name}"
    check_ids(sink, counts, promised, ROWS, once=True, complete=complete)
    if complete:
        left = [
            path.name
            for name in ("tmp", "quarantine")[: 1 if doubts else 2]
            for path in (root / "_interlock" / name).iterdir()
        ]
        assert not left, f"left behind: {left}"
    seen.write_text(str(len(counts)))


# ---------------------------------------------------------------- what is broken


def meet(fault: str, chance: random.Random, root: Path, *, mounts: bool) -> None:
    """Arrange for this process to meet its fault. What a mount does, or a kill from outside, is not done here."""
    steps = vars(_publish)
    if fault == "kill at a step":
        if chance.random() < 0.5:
            steps["run_step"] = break_at(chance.randrange(150), (), die)
        else:
            steps["run_step"] = break_at(chance.randrange(15), (chance.choice(_publish.STEPS[1:]),), die)
    elif fault == "read-only":
        action = partial(mount, root / "_interlock/tmp", "", _READ_ONLY) if mounts else refuse(errno.EROFS)
        done: list[int] = []

        def once() -> None:
            if not done or not mounts:
                done.append(1)
                action()

        steps["run_step"] = break_at(chance.randrange(120), (), once)
    elif fault == "the sink raises":
        action = chance.choice([refuse(errno.EIO), partial(_fail, "the codec failed")])
        steps["run_step"] = break_at(chance.randrange(40), ("write", "close"), action)
    elif fault == "fsync fails":
        _fail_once(chance.randrange(90))
    elif fault in MOUNTED and not mounts:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size_bytes = chance.randrange(300, 3000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def _fail(what: str) -> None:
    raise RuntimeError(what)


def _fail_once(count: int) -> None:
    fsync = os.fsync
    asked = [0]

    def failing(descriptor: int) -> None:
        asked[0] += 1
        if asked[0] == count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    vars(os)["fsync"] = failing


def work(sink: str, told: Path, fsync: Any, chance: random.Random) -> None:
    """Write what is left; note each row that is committed for sure."""
    writers = chance.choice([1, 1, 3])
    options: dict[str, Any] = {"shard_bytes": SHARD_BYTES, "fsync": fsync, "writers": writers, "timeout_s": 60}
    with told.open("a") as file, Drain(sink, total=ROWS, **options) as drain:
        ids = np.asarray(drain.todo(range(ROWS)))
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            drain.put(some, {"half": some * 0.5, "row": np.repeat(some[:, None] * 1.0, WIDTH, 1)})
            if chance.random() < 0.2:
                drain.flush()
                file.write("".join(f"{one}\n" for one in ids[: start + BATCH]))
                file.flush()


def predict(sink: str, folder: Path, fsync: str) -> None:
    """Do the same through the command line."""
    options = [f"--batch-size={BATCH}", f"--shard-bytes={SHARD_BYTES}", f"--fsync={fsync}", "--quiet"]
    with redirect_stdout(io.StringIO()):
        code = command_line(["predict", f"{folder}/model.py:model", f"{folder}/rows.npy", sink, *options])
    if code:
        raise RuntimeError(f"interlock predict ended with {code}")


# ---------------------------------------------------------------- one run


class Trial:
    """One folder, from its first process to its end."""

    def __init__(self, number: int, arguments: argparse.Namespace, schemes: list[str], folder: Path) -> None:
        self.chance = random.Random(f"{arguments.seed}/{number}")  # noqa: S311 - faults, not secrets
        self.scheme = schemes[number % len(schemes)]
        self.fault = FAULTS[number // len(schemes) % len(FAULTS)]
        around = number // len(schemes) // len(FAULTS)
        self.is_predict, self.fsync = around % 2 == 1, "never" if around % 3 == 2 else "commit"
        self.launches, self.mounts = arguments.launches, arguments.mounts
        self.folder, self.disk, self.log = folder, folder / "disk", folder / "log"
        self.disk.mkdir()
        self.root = self.disk / "out"
        self.sink = f"{self.scheme}:{self.root}"
        self.whole_s = arguments.whole_s[self.scheme, self.is_predict]
        self.found: dict[str, Any] = {
            "scheme": self.scheme, "fault": self.fault, "problem": "", "killed": 0, "failed": 0, "partly": 0,
        }  # fmt: skip
        (folder / "model.py").write_text(_MODEL)
        np.save(folder / "rows.npy", np.repeat(np.arange(ROWS * 1.0)[:, None], WIDTH, 1))

    def run(self) -> dict[str, Any]:
        """Do it; return what happened."""
        with ExitStack() as held:
            if self.fault in {"full disk", "no inodes"} and self.mounts:
                mount(self.disk, self.room())
                held.callback(unmount, self.disk)
            for launch in range(self.launches):
                if launch and self.fault in {"full disk", "no inodes"} and self.mounts:
                    _SYSTEM.mount(b"tmpfs", os.fsencode(self.disk), b"tmpfs", 32, self.room(2).encode())
                if not self.launch(launch, self.fault):
                    return self.found
            if self.fault in {"full disk", "no inodes"} and self.mounts:
                _SYSTEM.mount(b"tmpfs", os.fsencode(self.disk), b"tmpfs", 32, b"size=64m,nr_inodes=100000")
            self.launch(self.launches, "")
        return self.found

    def room(self, factor: int = 1) -> str:
        """Return how large the disk is: too small for the job, at another place each time."""
        if self.fault == "no inodes":
            return f"size=64m,nr_inodes={self.chance.randrange(8, 30) * factor}"
        return f"size={self.chance.randrange(12, 90) * factor}k,nr_inodes=100000"

    def launch(self, launch: int, fault: str) -> bool:
        """Start a process that meets the fault, if there is one; return whether what it left is right."""
        self.log.write_text("")
        pid = forked(lambda: self.job(launch, fault), self.log)
        if fault == "kill at any instant":
            time.sleep(self.chance.uniform(0, self.whole_s))
            os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        self.found["killed"] += code == -signal.SIGKILL
        self.found["failed"] += code == 3
        if self.mounts and fault == "read-only":
            unmount(self.root / "_interlock/tmp")
        said = self.log.read_text()[-600:]
        if code and not fault:
            self.wrong(f"the last process ended with {code}: {said}")
        elif code == 3 and not ("SinkError" in said or "interlock: error: " in said):
            self.wrong(f"process {launch} did not end with a clear error: {said}")
        else:
            self.look(launch, complete=not fault)
        return not self.found["problem"]

    def job(self, launch: int, fault: str) -> None:
        """Do what is left of the job, in a process of its own."""
        chance = random.Random(f"{self.chance.random()}/{launch}")  # noqa: S311 - as above
        meet(fault, chance, self.root, mounts=self.mounts)
        if self.is_predict:
            predict(self.sink, self.folder, self.fsync)
        else:
            work(self.sink, self.folder / f"told-{launch}", self.fsync, chance)

    def look(self, launch: int, *, complete: bool) -> None:
        """Check what is there, in a process of its own."""
        promised = {int(line) for file in self.folder.glob("told-*") for line in file.read_text().split()}
        seen = self.folder / "seen"
        doubts = self.fault == "fsync fails"  # of a shard that is adopted: then its rows are made again
        self.log.write_text("")
        if ended(forked(lambda: check(self.sink, promised, seen, complete=complete, doubts=doubts), self.log)):
            self.wrong(f"after process {launch}: {self.log.read_text()[-600:]}")
        else:
            self.found["partly"] += 0 < int(seen.read_text()) < ROWS

    def wrong(self, what: str) -> None:
        """Note what is wrong."""
        how = "interlock predict" if self.is_predict else "Drain"
        self.found["problem"] = f"{self.scheme}, {self.fault}, {how}, fsync {self.fsync}: {what}"


def measure(schemes: list[str], folder: Path) -> dict[tuple[str, bool], float]:
    """Return how long a whole job takes, for each sink and way of doing it: kills are drawn over that."""
    whole_s = {}
    (folder / "model.py").write_text(_MODEL)
    np.save(folder / "rows.npy", np.repeat(np.arange(ROWS * 1.0)[:, None], WIDTH, 1))
    for scheme in schemes:
        for is_predict in (False, True):
            sink = f"{scheme}:{folder}/{scheme}-{is_predict}"
            start_s = time.perf_counter()
            if is_predict:
                pid = forked(partial(predict, sink, folder, "commit"), folder / "log")
            else:
                pid = forked(partial(work, sink, folder / "told", "commit", random.Random(0)), folder / "log")  # noqa: S311
            assert not ended(pid), (folder / "log").read_text()
            whole_s[scheme, is_predict] = time.perf_counter() - start_s
    return whole_s


def trial(number: int, arguments: argparse.Namespace, schemes: list[str]) -> dict[str, Any]:
    """Do one run."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        found = Trial(number, arguments, schemes, Path(name)).run()
    found["problem"] = found["problem"] and f"run {number} (seed {arguments.seed}), {found['problem']}"
    return found


def can_mount() -> bool:
    """Tell whether a tmpfs can be mounted in a namespace of our own."""
    with tempfile.TemporaryDirectory() as folder, suppress(FileNotFoundError):
        command = [*INSIDE, "mount", "-t", "tmpfs", "tmpfs", folder]
        return not subprocess.run(command, capture_output=True, check=False).returncode
    return False


def table(found: list[dict[str, Any]], *, mounts: bool) -> Table:
    """Return how it went, by sink and fault."""
    schemes = list(dict.fromkeys(one["scheme"] for one in found))
    title = f"a drain broken and resumed ({ROWS} rows a run): runs with rows lost, doubled or wrong, of how many"
    shown = Table("fault", *schemes, title=title)
    for fault in FAULTS:
        cells = []
        for scheme in schemes:
            some = [one for one in found if (one["scheme"], one["fault"]) == (scheme, fault)]
            cells.append(f"{sum(bool(one['problem']) for one in some)} of {len(some)}")
        stands_for = "" if mounts or fault not in MOUNTED else " (as a limit or an error, not mounted)"
        shown.add_row(f"{fault}{stands_for}", *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--launches", type=int, default=2, help="processes that meet a fault in each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sinks", help="which, in turn; default: the file sinks that are installed. Also delta, slowly"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--save", action="store_true", help=f"write them to {SAVED}")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mounts", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        schemes = arguments.sinks.split(",") if arguments.sinks else installed_sinks()
        with tempfile.TemporaryDirectory(prefix="interlock-chaos-") as name, ExitStack() as held:
            arguments.folder = Path(name)
            if arguments.mounts:  # syncing costs nothing there, so that a run takes a second and not ten
                mount(arguments.folder, "")
                held.callback(unmount, arguments.folder)
            arguments.whole_s = measure(schemes, arguments.folder)
            numbers = range(arguments.serve, arguments.runs, arguments.jobs)
            serve(numbers, partial(trial, arguments=arguments, schemes=schemes))
        return
    mounts = can_mount()
    words = [f"--runs={arguments.runs}", f"--launches={arguments.launches}", f"--seed={arguments.seed}"]
    words += [f"--sinks={arguments.sinks}"] * bool(arguments.sinks) + ["--mounts"] * mounts
    found, seconds = served(__file__, words, arguments.jobs, INSIDE if mounts else ())
    problems = [one["problem"] for one in found if one["problem"]]
    figures = {
        "runs": len(found),
        "runs by fault": dict(Counter(one["fault"] for one in found)),
        "runs by sink": dict(Counter(one["scheme"] for one in found)),
        "processes killed": sum(one["killed"] for one in found),
        "processes that ended with an error": sum(one["failed"] for one in found),
        "processes that left part of the rows": sum(one["partly"] for one in found),
        "disks mounted": mounts,
        "runs with rows lost, doubled or wrong": len(problems),
    }
    Console(width=140).print(table(found, mounts=mounts))
    for name, count in figures.items():
        print(f"{name}: {count}")
    print(f"{seconds:.0f} s")
    end_with(problems, figures, arguments.json or (SAVED if arguments.save else None))


if __name__ == "__main__":
    main()
