"""The scripts about the drain run in small, and check what they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("drain_todo", ["--rows=300000", "--shard-rows=4096", "--strings=20000"], "shuffled"),
        ("chaos", ["--runs=14", "--jobs=1", "--sinks=npy,webdataset"], "runs with rows lost, doubled or wrong: 0"),
        ("chaos_ranks", ["--runs=6", "--jobs=1"], "runs with rows lost, doubled or wrong │ 0"),
    ],
)
def test_a_script_runs_in_small(script, words, said):
    command = [sys.executable, str(FOLDER / f"{script}.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
