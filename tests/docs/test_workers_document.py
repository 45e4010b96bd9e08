"""`docs/workers.md` says what is true: its programs run as scripts, and its figures hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.feed import _auto, _processes

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number, tmp_path):
    """As a file: worker processes run it once more."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[number], encoding="utf-8")
    command = [sys.executable, "-W", "error", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_figures_are_those_of_the_code():
    assert f"When {_processes._MOST_DEATHS} workers die" in TEXT
    assert _processes.END_S == 2
    assert f"less than {_auto.SMALL_BATCH_S * 1e6:.0f} µs" in TEXT
    assert f"a sample takes {_auto.CHEAP_S * 1e6:.0f} µs or more" in TEXT
    assert f"{_auto.SCALES} times as fast" in TEXT


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
