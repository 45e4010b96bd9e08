"""The programs of `docs/cuda.md` that need a GPU. The others: tests/docs/test_cuda_document.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "cuda.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"<!-- gpu: (\w+) -->\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("needs", "program"), PROGRAMS, ids=[needs for needs, _ in PROGRAMS])
def test_a_program_runs_on_a_gpu(needs, program):
    pytest.importorskip(needs)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
