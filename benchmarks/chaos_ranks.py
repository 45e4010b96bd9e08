"""Break the drain wherever it can break, with one to three ranks, and count what is lost, doubled or wrong.

    python benchmarks/chaos_ranks.py [--runs 200] [--jobs 2] [--seed 0] [--json FILE]

Each run has a folder of its own, alternately of each kind of file sink that is installed. One to three processes write
120 rows into it and meet a fate each: `kill -9` at a step of the protocol or at any instant, a disk that is full from
some step on, a format that raises, or none. That is repeated with another number of ranks (`--launches` times), then
once without fates. In half of the runs the ranks are given rows twice, as a sampler that pads does. In the end the
folder is compacted, killed at a step of that, and compacted again.

After each launch: what a rank was told is committed must be there; without padding no row may be there twice, to a
reader that goes by file names; each value must be right. In the end each row must be there once, and `verify` must
agree. A compaction that was killed may hide rows from such a reader until the next one, and never shows one twice.
"""

from __future__ import annotations

import argparse
import errno
import random
import signal
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from _chaos import break_at, check_ids, die, end_with, ended, forked, installed_sinks, refuse, serve, served  # type: ignore[import-not-found]
from interlock.drain import (
    Drain,
    _maintain,
    _publish,
    _rewrite,
    compact_sink,
    open_sink,
    settle_sink,
)

ROWS = 120
BATCH = 5
FATES = ("kill at a step", "kill at any instant", "full disk", "the format raises", "none")


def meet(fate: str, chance: random.Random) -> None:
    """Arrange for this process to meet its fate."""
    if fate == "kill at a step":
        vars(_publish)["run_step"] = break_at(chance.randrange(70), set(), die)
    elif fate == "kill at any instant":
        timer = threading.Timer(chance.uniform(0, 0.4), die)
        timer.daemon = True
        timer.start()
    elif fate == "full disk":
        names = {"schema", "open", "write", "close", "sync", "rename", "record"}
        vars(_publish)["run_step"] = break_at(chance.randrange(50), names, refuse(errno.ENOSPC))
    elif fate == "the format raises":
        vars(_publish)["run_step"] = break_at(chance.randrange(20), {"write", "close"}, refuse(errno.EIO))


def work(sink: str, rank: int, world: int, told: Path, fate: str, chance: random.Random, *, padded: bool) -> None:
    """Write the share of a rank; note each row that is committed for sure."""
    meet(fate, chance)
    with Drain(sink, rank=(rank, world), total=ROWS, shard_bytes=400, timeout_s=60) as drain, told.open("a") as file:
        ids = [int(one) for one in drain.todo(range(ROWS))]
        if padded:
            ids += [one for one in (0, 1, 2) if one not in drain.committed and one not in ids]
        for start in range(0, len(ids), BATCH):
            some = np.array(ids[start : start + BATCH])
            drain.put(some, {"half": some * 0.5, "row": np.repeat(some[:, None], 4, 1)})
            if chance.random() < 0.3:
                drain.flush()
                file.write("".join(f"{one}\n" for one in ids[: start + BATCH]))
                file.flush()


def check(sink: str, folder: Path, promised: set[int], *, once: bool, complete: bool) -> None:
    """Read what is visible; raise with what is wrong."""
    format_of_it, root = open_sink(sink)
    counts: Counter[int] = Counter()
    for shard in sorted(root.glob("part-*")):
        ids = format_of_it.read_shard(shard).ids
        rows = format_of_it.read_rows(shard, range(len(ids)))
        counts.update(ids.tolist())
        right = (np.asarray(rows["half"]) == ids * 0.5).all() and (np.asarray(rows["row"]) == ids[:, None]).all()
        assert right, f"wrong values in {shard.name}"
    check_ids(sink, counts, promised, ROWS, once=once, complete=complete)
    (folder / "rows").write_text(str(len(counts)))


def compact(sink: str, chance: random.Random) -> None:
    run_step = break_at(chance.randrange(60), set(), die)
    vars(_rewrite)["run_step"] = vars(_maintain)["run_step"] = run_step
    compact_whole(sink, chance.choice([2000, 1 << 20]))


def compact_whole(sink: str, shard_bytes: int = 1 << 20) -> None:
    compact_sink(sink, shard_bytes=shard_bytes)
    assert settle_sink(sink) == 0


def trial(number: int, seed: int, launches: int, schemes: list[str]) -> dict[str, Any]:
    """Do one run; return what happened."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - fates, not secrets
    scheme, padded = schemes[number % len(schemes)], number // len(schemes) % 2 == 1
    found: dict[str, Any] = {"problem": "", "scheme": scheme, "fates": Counter(), "killed": 0, "failed": 0, "partly": 0}
    with tempfile.TemporaryDirectory(prefix="interlock-chaos-") as name:
        folder = Path(name)
        sink, log = f"{scheme}:{folder / 'out'}", folder / "log"

        def looked(what: str, *, once: bool, complete: bool) -> bool:
            promised = {int(line) for file in folder.glob("told-*") for line in file.read_text().split()}
            promised = set() if "killed" in what else promised
            log.write_text("")
            code = ended(forked(lambda: check(sink, folder, promised, once=once, complete=complete), log))
            if code:
                found["problem"] = f"run {number} ({scheme}, padded {padded}), {what}: {log.read_text()[-400:]}"
            return not code

        for launch in range(launches + 1):
            world = chance.randint(1, 3)
            fates = [chance.choice(FATES) if launch < launches else "none" for _ in range(world)]
            found["fates"].update(fates)
            pids = [
                forked(
                    lambda rank=rank, fate=fate, world=world, launch=launch: work(
                        sink,
                        rank,
                        world,
                        folder / f"told-{launch}-{rank}",
                        fate,
                        random.Random(f"{seed}/{number}/{launch}/{rank}"),  # noqa: S311 - as above
                        padded=padded,
                    ),
                    log,
                )
                for rank, fate in enumerate(fates)
            ]
            codes = [ended(pid) for pid in pids]
            found["killed"] += sum(code == -signal.SIGKILL for code in codes)
            found["failed"] += sum(code == 3 for code in codes)
            is_last = launch == launches
            if is_last and any(codes):
                found["problem"] = (
                    f"run {number} ({scheme}): the last launch ended with {codes}: {log.read_text()[-400:]}"
                )
                return found
            if not looked(f"launch {launch}", once=not padded or is_last, complete=is_last):
                return found
            found["partly"] += 0 < int((folder / "rows").read_text()) < ROWS
        found["killed"] += ended(forked(lambda: compact(sink, chance), log)) == -signal.SIGKILL
        if not looked("compact, killed", once=True, complete=False):
            return found
        code = ended(forked(lambda: compact_whole(sink), log))
        if code:
            found["problem"] = f"run {number} ({scheme}): compact ended with {code}: {log.read_text()[-400:]}"
        else:
            looked("compacted", once=True, complete=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--launches", type=int, default=2, help="launches with fates in each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        numbers = range(arguments.serve, arguments.runs, arguments.jobs)
        do = partial(trial, seed=arguments.seed, launches=arguments.launches, schemes=installed_sinks())
        serve(numbers, do)
        return
    words = [f"--runs={arguments.runs}", f"--launches={arguments.launches}", f"--seed={arguments.seed}"]
    found, seconds = served(__file__, words, arguments.jobs)
    fates: Counter[str] = Counter()
    for one in found:
        fates.update(one["fates"])
    problems = [one["problem"] for one in found if one["problem"]]
    figures = {
        "runs": len(found),
        **{f"ranks that met: {fate}": fates[fate] for fate in FATES},
        "processes killed": sum(one["killed"] for one in found),
        "processes that ended with an error": sum(one["failed"] for one in found),
        "launches that left part of the rows": sum(one["partly"] for one in found),
        "runs with rows lost, doubled or wrong": len(problems),
    }
    table = Table("figure", "count", title=f"one to three ranks, broken and resumed ({ROWS} rows a run)")
    for name, count in figures.items():
        table.add_row(name, str(count))
    Console().print(table)
    print(f"{seconds:.0f} s")
    end_with(problems, figures, arguments.json)


if __name__ == "__main__":
    main()
