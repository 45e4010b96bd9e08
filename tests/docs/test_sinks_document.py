"""`docs/sinks.md` says what is true: its programs run, one after the other, and it names every sink."""

from __future__ import annotations

import re
from pathlib import Path

from interlock.drain._sinks import _TABLE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) == 11
    names: dict[str, object] = {"__name__": "__main__"}
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/sinks.md, program {number}", "exec"), names)  # noqa: S102 - our own text


def test_every_sink_is_in_the_table():
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [f"{scheme}:PATH" for scheme in _TABLE] + ["null:"]


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
