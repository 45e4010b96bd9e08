"""`docs/sources.md` says what is true: its programs run, one after the other, and it names every source."""

from __future__ import annotations

import re
from pathlib import Path

from interlock.feed import sources

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) == 5
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/sources.md, program {number}", "exec"), names)  # noqa: S102 - our own text
    assert (tmp_path / "train-000.tar.index.json").exists()


def test_every_public_source_is_named():
    for name in sources.__all__:
        if name[0].isupper() and name not in {"FileSource", "LoadedObject"}:
            assert f"`{name}(" in TEXT, name


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
