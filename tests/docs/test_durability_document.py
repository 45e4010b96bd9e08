"""`docs/durability.md` says what is true: its program prints what it says, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_text_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/durability.md", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own text
    assert f"It prints `{capsys.readouterr().out.strip()}`" in TEXT


def test_what_it_names_as_proof_is_there():
    names = re.findall(r"`(?:python )?((?:tests|benchmarks)/[\w/]+\.py)`", TEXT)
    assert len(names) >= 4
    for name in names:
        assert (ROOT / name).exists(), name
