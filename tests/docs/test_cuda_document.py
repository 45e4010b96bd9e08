"""`docs/cuda.md` says what is true: its programs run, on the machines that they are for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")
PROGRAMS = [
    (needs or "", program)
    for needs, program in re.findall(r"(?:<!-- gpu: (\w+) -->\n)?```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
]


def run(program):
    """Run a program in a process of its own, as a reader would."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("program", [program for needs, program in PROGRAMS if not needs], ids=range(5))
def test_a_program_runs_with_or_without_a_gpu(program):
    for name in re.findall(r"^import (jax|torch)$", program, re.MULTILINE):
        pytest.importorskip(name)
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_what_needs_a_gpu_says_which_framework():
    assert [needs for needs, _ in PROGRAMS if needs] == ["torch", "cupy", "torch"]


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
