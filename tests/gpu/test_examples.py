"""The two programs that the project exists for, on a real device. Their twins are in tests/examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = 2

BOTH_FORMS = """
import runpy, sys
_, program, *options = sys.argv
for form in (["--naive"], []):
    sys.argv = [program, *options, *form]
    runpy.run_path(program, run_name="__main__")
"""
"""In one process: most of the time goes into imports, and into the start of the driver."""


def lines(command: list[str]) -> list[str]:
    """Run a program in both forms to its end; return what it printed."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", BOTH_FORMS, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env=environment,
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
    found = lines([str(EXAMPLES / program), *options, "--runs", str(RUNS)])
    naive, ours = found[: RUNS + 1], found[RUNS + 1 :]
    assert naive[-1].endswith(f"in {RUNS} of {RUNS} runs")
    assert len(ours) == RUNS + 1
    assert all(re.match(r"interlock: 0 of ", line) for line in ours[:RUNS])
    assert ours[-1].endswith(f"in 0 of {RUNS} runs")
