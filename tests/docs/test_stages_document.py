"""`docs/stages.md` says what is true: its programs run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")


def test_the_programs_run(capsys):
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) == 3
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/stages.md, program {number}", "exec"), names)  # noqa: S102 - our own text
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(", busy")[0] for line in lines] == [
        "read: 16 workers",
        "decode: 2 workers",
        "flip: 1 workers",
        "copy: 1 workers",
    ]


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
