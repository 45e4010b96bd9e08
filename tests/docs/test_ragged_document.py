"""`docs/ragged.md` says what is true: its programs run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ragged.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) == 5
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/ragged.md, program {number}", "exec"), names)  # noqa: S102 - our own text
    assert capsys.readouterr().out == "[18  8]\n[ 0 19]\n"


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, heading = target.partition("#")
        text = (ROOT / "docs" / path).read_text(encoding="utf-8")
        headings = [line.strip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")]
        assert not heading or heading in headings, target
