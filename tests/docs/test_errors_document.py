"""`docs/errors.md` says what is true: its programs run, one after the other, and its figures hold."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from interlock.feed import Failure, FeedStatistics, Tolerance, _failures, _readers, _tolerance

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    names: dict[str, object] = {}
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/errors.md, program {number}", "exec"), names)  # noqa: S102 - our own text
    promised = re.search(r"It prints `(.*); …`", TEXT)
    assert promised is not None
    assert capsys.readouterr().out.startswith(promised[1])


def test_every_option_field_and_count_is_named():
    for field in (*fields(Tolerance), *fields(Failure)):
        assert field.name in TEXT, field.name
    for name in ("failed", "substituted", "retried"):
        assert f"`{name}`" in TEXT
        assert hasattr(FeedStatistics(), name)


def test_its_numbers_are_those_of_the_code():
    words = " ".join(TEXT.split())
    assert f"at most {_tolerance.MOST_LISTED:,} entries" in words
    assert f"of the {_readers._MOST_SUBSTITUTES} that follow" in words
    assert f"at most {_failures._LONGEST_REASON} characters" in words
    assert f"({Tolerance().rate_after} if you say nothing)" in words


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
