"""`benchmarks/feed/resume.py` runs, and no interrupted epoch loses or doubles a sample."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "feed" / "resume.py"


def test_the_script_runs_and_every_sample_comes_once(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, SCRIPT, "--quick", "--json", out]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert len(figures["interrupted"]) == 3
    assert all(row == {"missing": 0, "more than once": 0} for row in figures["interrupted"].values())
    assert all(row["state_bytes"] < 1024 for row in figures["costs"].values())
