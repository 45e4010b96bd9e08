"""Kill a feed's workers and the program round it at random, go on, and count what is lost, doubled or left behind.

    python benchmarks/feed/chaos.py [--save] [--quick] [--runs 200] [--jobs 2] [--seed 0] [--processes 2]

Each run is a program that reads an epoch of 2,000 samples in random order, of which 1 % are broken, with two worker
processes and `on_error="skip"`. Of each batch it appends the ids and the state to a file, in one write. Now and then a
worker, or the program itself, is killed with SIGKILL; the program is then started again and goes on from the last state
in the file. In the end every sound sample must have come exactly once with the right value, or be in the ledger
as one whose worker was killed twice; every broken one must be in the ledger. A program that does not end within a
minute hangs. Five seconds after a program was killed or has ended, no process of it may be left, and nothing new in
/dev/shm.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _contest import Report, feed_arguments

if TYPE_CHECKING:
    import argparse

    import numpy.typing as npt

SAMPLES, WIDTH, BATCH = 2000, 256, 20
READ_S = 0.001
BROKEN_BELOW = (0x10000 // 100).to_bytes(2, "big")
HANG_S = 60.0
GONE_S = 5.0
SHARED = Path("/dev/shm")  # noqa: S108 - nothing is written there, that is the point
MARK = "INTERLOCK_FEED_CHAOS"
"""Variable of the environment by which all processes of a program are known, whoever their parent is now."""


def broken(index: int) -> bool:
    """Tell whether a sample is one of the 1 % that cannot be read."""
    return hashlib.blake2b(index.to_bytes(8, "little"), digest_size=8).digest()[0:2] < BROKEN_BELOW


BROKEN = {index for index in range(SAMPLES) if broken(index)}


def values(index: int) -> npt.NDArray[np.int64]:
    """Return what a sample holds."""
    return np.arange(WIDTH) * (index + 1)


class Samples:
    """Samples that take a while, some of which are broken."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        time.sleep(READ_S)
        if broken(index):
            raise ValueError(f"sample {index} is broken")
        return values(index)


def program(folder: Path, processes: int, seed: int) -> None:
    """Read the epoch, or what is left of it."""
    from interlock import Feed  # noqa: PLC0415 - the one who starts and kills programs needs none
    from interlock.feed import Tolerance  # noqa: PLC0415 - as above

    tolerance = Tolerance("skip", ledger=folder / "ledger.jsonl")
    workers = f"processes:{processes}" if processes else 2
    feed = Feed(
        Samples(), batch_size=BATCH, workers=workers, shuffle=True, seed=seed, ids=True, on_error=tolerance, depth=3
    )
    log = folder / "log.jsonl"
    if log.exists() and (entries := read_lines(log)):
        feed.load_state_dict(entries[-1]["state"])
    if feed.epoch:
        return
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for ids, batch in feed:
        right = np.array_equal(batch, np.stack([values(index) for index in ids.tolist()]))
        entry = {"ids": ids.tolist(), "right": right, "state": feed.state_dict()}
        os.write(target, json.dumps(entry).encode() + b"\n")
    feed.close()


def read_lines(path: Path) -> list[Any]:
    """Return the whole lines of a file that may have been cut short at any place."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


@dataclass
class Outcome:
    """What one run showed.

    Attributes:
        problems: What may not be.
        worker_kills: Workers killed.
        program_kills: Programs killed.
        given_up: Sound samples in the ledger, since their workers were killed.
        told_twice: Lines of the ledger about a sample that has one already: its batch was not consumed before a kill.
    """

    problems: list[str] = field(default_factory=list)
    worker_kills: int = 0
    program_kills: int = 0
    given_up: int = 0
    told_twice: int = 0


def shared_memory() -> set[str]:
    """Return the names in /dev/shm."""
    return {entry.name for entry in SHARED.iterdir()}


def marked(mark: str) -> list[int]:
    """Return all processes that carry a mark."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or is not ours
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


class Run:
    """One epoch, however many programs that takes."""

    def __init__(self, folder: Path, number: int, given: argparse.Namespace, whole_s: float) -> None:
        self.folder = folder
        self.whole_s = whole_s
        self.seed = number
        self.processes = given.processes
        self.chance = random.Random(f"{given.seed}/{number}")  # noqa: S311 - instants, not secrets
        self.mark = f"{os.getpid()}-{number}"
        self.errors = folder / "errors.txt"
        self.outcome = Outcome()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the program. It writes to a file: a pipe would stay open with a process that it leaves behind."""
        command = [sys.executable, __file__, "--program", str(self.folder), str(self.processes), str(self.seed)]
        environment = {**os.environ, MARK: self.mark}
        with self.errors.open("wb") as errors:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)

    def go(self) -> Outcome:
        """Run programs until one comes to the end; return what was found."""
        for kill_program in [*(self.chance.random() < 0.7 for _ in range(2)), False]:
            program = self.start()
            ended = self.harass(program, kill_program=kill_program)
            self.expect_nobody()
            if self.outcome.problems:
                break
            if ended and not kill_program:
                break
        self.check()
        return self.outcome

    def harass(self, program: subprocess.Popen[bytes], *, kill_program: bool) -> bool:
        """Kill workers of a program at random instants, and it too if so wished; return whether it came to its end."""
        deadline = time.monotonic() + HANG_S
        last_instant = time.monotonic() + self.chance.uniform(0, self.whole_s) if kill_program else deadline
        worker_kills = self.chance.randint(0, 3)
        while program.poll() is None:
            if time.monotonic() > deadline:
                self.outcome.problems.append(f"hangs: no end in {HANG_S:.0f} s")
                self.end_all()
                break
            if time.monotonic() > last_instant:
                program.send_signal(signal.SIGKILL)
                program.wait()
                self.outcome.program_kills += 1
                return False
            time.sleep(min(self.chance.uniform(0, self.whole_s / 3), 1.0))
            if worker_kills and self.kill_worker(program.pid):
                worker_kills -= 1
        if program.wait() and not self.outcome.problems:
            self.outcome.problems.append(f"ended with {program.returncode}: {self.errors.read_text().strip()[-300:]}")
        return True

    def kill_worker(self, program: int) -> bool:
        """Kill one of the workers, if there is one."""
        others = [number for number in marked(self.mark) if number != program and is_worker(number)]
        if not others:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(sorted(others)), signal.SIGKILL)
            self.outcome.worker_kills += 1
        return True

    def end_all(self) -> None:
        """Kill every process of the run."""
        for number in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def expect_nobody(self) -> None:
        """Note it if a process outlives its program."""
        deadline = time.monotonic() + GONE_S
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            self.outcome.problems.append(f"{len(left)} processes left")
            self.end_all()

    def check(self) -> None:
        """Compare what came, and what the ledger says, with what there was."""
        problems, log = self.outcome.problems, self.folder / "log.jsonl"
        entries = read_lines(log) if log.exists() else []
        came = Counter(index for entry in entries for index in entry["ids"])
        told = Counter(entry["index"] for entry in read_lines(self.folder / "ledger.jsonl"))
        self.outcome.given_up = len(set(told) - BROKEN - set(came))
        self.outcome.told_twice = sum(told.values()) - len(told)
        found = {
            "came more than once": sum(count > 1 for count in came.values()),
            "lost": len(set(range(SAMPLES)) - set(came) - set(told)),
            "broken but handed over": len(set(came) & BROKEN),
            "broken and not in the ledger": len(BROKEN - set(told)),
            "batches with wrong values": sum(not entry["right"] for entry in entries),
        }
        problems += [f"{count} {what}" for what, count in found.items() if count]


def is_worker(process: int) -> bool:
    """Tell whether a process works: not the resource tracker of `multiprocessing`, and not one that is ending."""
    with suppress(OSError):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        return bool(command) and b"resource_tracker" not in command
    return False


def run(number: int, given: argparse.Namespace, whole_s: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="interlock-feed-chaos-") as folder:
        return Run(Path(folder), number, given, whole_s).go()


def undisturbed_s(given: argparse.Namespace) -> float:
    """Return how long a program takes that nobody kills."""
    with tempfile.TemporaryDirectory(prefix="interlock-feed-chaos-") as folder:
        one = Run(Path(folder), 0, given, HANG_S)
        began = time.perf_counter()
        one.start().wait()
        took_s = time.perf_counter() - began
        one.check()
        if one.outcome.problems:
            raise SystemExit(f"undisturbed: {one.outcome.problems} {one.errors.read_text().strip()[-300:]}")
    return took_s


def report_of(outcomes: list[Outcome], left: set[str], seed: int) -> Report:
    report = Report("feed-chaos", f"{len(outcomes)} epochs of {SAMPLES:,} samples", ("figure", "count"))
    report.figures = {
        "runs": len(outcomes),
        "workers killed": sum(one.worker_kills for one in outcomes),
        "programs killed": sum(one.program_kills for one in outcomes),
        "broken samples an epoch": len(BROKEN),
        "sound samples given up, as their workers were killed twice": sum(one.given_up for one in outcomes),
        "bad samples told again after a kill": sum(one.told_twice for one in outcomes),
        "runs with a hang, samples lost, doubled or wrong, or processes left": sum(
            bool(one.problems) for one in outcomes
        ),
        "new entries in /dev/shm": len(left),
    }
    report.rows = [(name, str(count)) for name, count in report.figures.items()]
    problems = [f"run {number} (seed {seed}): {what}" for number, one in enumerate(outcomes) for what in one.problems]
    report.lines += problems[:20]
    report.figures["problems"] = problems
    report.goal("runs with a problem", len({line.partition(":")[0] for line in problems}), 0, at_most=True, unit="")
    report.goal("entries left in /dev/shm", len(left), 0, at_most=True, unit="")
    return report


def main() -> None:
    if sys.argv[1:2] == ["--program"]:
        folder, processes, number = sys.argv[2:]
        program(Path(folder), int(processes), int(number))
        return
    given = feed_arguments(
        __doc__,
        runs=(200, "epochs"),
        jobs=(2, "epochs at a time"),
        seed=(0, "of the instants"),
        processes=(2, "worker processes of a feed, 0 for two threads"),
    )
    given.runs = min(given.runs, 10) if given.quick else given.runs
    before = shared_memory()
    whole_s = undisturbed_s(given)
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(lambda number: run(number, given, whole_s), range(given.runs)))
    time.sleep(GONE_S)
    left = shared_memory() - before
    report = report_of(outcomes, left, given.seed)
    report.show(save=given.save)
    raise SystemExit(bool(report.figures["problems"] or left))


if __name__ == "__main__":
    main()
