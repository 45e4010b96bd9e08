"""The two programs that the project exists for, on a real device. Their twins are in tests/examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = 2


def lines(command: list[str]) -> list[str]:
    """Run a program to its end; return what it printed."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("program", "options"),
    [("corrupted_feed.py", ["--batches", "16"]), ("zeros_in_predictions.py", [])],
)
def test_the_usual_form_is_wrong_every_time_and_ours_never(program: str, options: list[str]):
    if program == "zeros_in_predictions.py":
        pytest.importorskip("pytorch_lightning")
    command = [str(EXAMPLES / program), *options, "--runs", str(RUNS)]
    with ThreadPoolExecutor() as pool:  # most of the time goes into their imports
        (*_, naive), (*ours, summary) = pool.map(lines, [[*command, "--naive"], command])
    assert naive.endswith(f"in {RUNS} of {RUNS} runs")
    assert summary.endswith(f"in 0 of {RUNS} runs")
    assert len(ours) == RUNS
    assert all(re.match(r"interlock: 0 of ", line) for line in ours)
