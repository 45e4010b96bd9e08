"""The scripts of benchmarks/feed run in small, and a loader that cannot run is a row that says why."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "feed"
ROWS = {
    "jpeg": (["--only", "inline", "--files", "16", "--steps", "2"], ["Feed, inline"]),
    "tokens": (["--only", "alone,feed"], ["numpy.take alone", "Feed"]),
    "startup": (["--only", "feed", "--paths", "2000"], ["Feed, threads"]),
    "consumers": (["--only", "threads to numpy"], ["Feed, threads to NumPy"]),
    "processes": (["--only", "threads"], ["Feed, threads"]),
}


@pytest.fixture
def contest(monkeypatch):
    """The module that the scripts share."""
    monkeypatch.syspath_prepend(FOLDER)
    import _contest  # noqa: PLC0415 - found where the fixture says

    yield _contest
    for name in ("_contest", "_common"):
        sys.modules.pop(name, None)


def program(name, *words):
    return subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--quick", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("script", list(ROWS))
def test_script_runs_in_small(script):
    words, names = ROWS[script]
    run = program(script, *words)
    assert run.returncode == 0, run.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in run.stdout.splitlines() if line.startswith("│")]
    for name in names:
        row = next(cells for cells in rows if name in cells)
        assert row[row.index(name) + 1], run.stdout


def test_killed_programs_and_workers_lose_and_double_nothing():
    run = program("chaos", "--runs", "2")
    assert run.returncode == 0, run.stdout + run.stderr


class Counted:
    """A loader that says how often it ran, and may fail."""

    def __init__(self, *, fails=False, spends_s=0.0):
        self.fails = fails
        self.spends_s = spends_s

    def run(self, steps):
        if self.fails:
            raise ValueError("no such luck")
        until = time.process_time() + self.spends_s * steps
        while time.process_time() < until:
            pass

    def close(self):
        pass


def test_loader_runs_elsewhere_and_what_it_uses_up_is_counted(contest):
    remote = contest.Remote(partial(Counted, spends_s=0.05), warm=1).ready()
    wall = remote.run(2)
    remote.close()
    assert wall >= 0.1
    assert remote.used_s[0] == pytest.approx(0.05, rel=0.3)


def test_loader_that_fails_says_why(contest):
    remote = contest.Remote(partial(Counted, fails=True), warm=0).ready()
    with pytest.raises(RuntimeError, match="ValueError: no such luck"):
        remote.run(1)
    remote.end()


def test_process_that_dies_is_an_error_and_no_hang(contest):
    with pytest.raises(RuntimeError, match="its process ended"):
        contest.in_process(partial(os._exit, 3))
