"""What the scripts that break the drain share: forks that meet a fate, many of them at a time, and a report of it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from interlock.drain import open_sink, read_committed, verify_sink

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterable, Sequence

RunStep: TypeAlias = "Callable[[str, Callable[[], None]], None]"
NEEDS = {"parquet": "pyarrow", "arrow": "pyarrow", "npy": "", "safetensors": "", "zarr": "zarr", "webdataset": ""}
"""The file sinks, and the package that each needs."""


def installed_sinks() -> list[str]:
    """Return the sinks that can be opened here; what they need is imported, so that forks have it."""
    found = []
    for scheme, package in NEEDS.items():
        if not package or importlib.util.find_spec(package):
            open_sink(f"{scheme}:nowhere")
            found.append(scheme)
    return found


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> Callable[[], None]:
    """Return what raises an error of the storage."""

    def action() -> None:
        raise OSError(number, os.strerror(number))

    return action


def break_at(count: int, names: Collection[str], action: Callable[[], None]) -> RunStep:
    """Return a `run_step` that does something in place of step `count` of those called `names`, and after it."""
    seen = [0]

    def run_step(name: str, step: Callable[[], None]) -> None:
        if not names or name in names:
            seen[0] += 1
            if seen[0] > count:
                action()
        step()

    return run_step


def forked(action: Callable[[], None], log: Path) -> int:
    """Start `action` in a fork, whose stderr goes to a file; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 2)
        action()
    except Exception as error:  # noqa: BLE001 - told to the parent by file and exit code
        with log.open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        code = 3
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a fork; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_ids(sink: str, counts: Counter[int], promised: set[int], rows: int, *, once: bool, complete: bool) -> None:
    """Look at the ids that are visible; raise with what is wrong.

    Args:
        sink: Where they are.
        counts: How often each is there.
        promised: Those that were told to be committed.
        rows: How many there are in all.
        once: Whether none may be there twice.
        complete: Whether all must be there.
    """
    doubled = [one for one, count in counts.items() if count > 1]
    assert not (once and doubled), f"doubled: {doubled}"
    assert promised <= set(counts), f"lost: {sorted(promised - set(counts))}"
    if (Path(sink.partition(":")[2]) / "_interlock/run.json").exists():
        committed = read_committed(sink)
        assert promised <= {one for one in range(rows) if one in committed}, "not committed though told so"
    if complete:
        assert set(counts) == set(range(rows)), f"missing: {sorted(set(range(rows)) - set(counts))}"
        report = verify_sink(sink)
        assert report.ok, report.problems


def serve(numbers: Iterable[int], trial: Callable[[int], dict[str, Any]]) -> None:
    """Do runs; print a line of JSON for each. The process starts no thread, so it may fork."""
    for number in numbers:
        print(json.dumps(trial(number)), flush=True)


def served(script: str, words: Sequence[str], jobs: int, before: Sequence[str] = ()) -> tuple[list[Any], float]:
    """Have `jobs` processes of a script do the runs, each with `--serve=NUMBER`; return what they print, and seconds.

    Args:
        script: The script.
        words: Its arguments.
        jobs: How many.
        before: What starts the interpreter, if something does.
    """
    start_s = time.perf_counter()
    command = [*before, sys.executable, script, *words, f"--jobs={jobs}"]
    with ThreadPoolExecutor(jobs) as pool:
        texts = pool.map(
            lambda job: (
                subprocess.run([*command, f"--serve={job}"], stdout=subprocess.PIPE, check=True, text=True).stdout
            ),
            range(jobs),
        )
        found = [json.loads(line) for text in texts for line in text.splitlines()]
    return found, time.perf_counter() - start_s


def end_with(problems: Sequence[str], figures: dict[str, Any], path: Path | None) -> None:
    """Print what was wrong, keep the figures, and end the program."""
    for problem in problems:
        print(problem)
    if path is not None:
        path.write_text(json.dumps({**figures, "problems": problems}, indent=2) + "\n")
    raise SystemExit(bool(problems))
