"""The programs of `docs/cuda.md` and `docs/torch.md` that need a GPU. The others: tests/docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("cuda.md", "torch.md"))
PROGRAMS = re.findall(r"<!-- gpu: (\w+) -->\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("needs", "program"), PROGRAMS, ids=[needs for needs, _ in PROGRAMS])
def test_a_program_runs_on_a_gpu(needs, program, tmp_path):
    pytest.importorskip(needs)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
