"""`docs/explain.md` says what is true: its programs run, and it names every limit and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from interlock.feed._attribution import Limit

TEXT = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number, capsys):
    exec(compile(PROGRAMS[number], f"program {number}", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own text
    said = capsys.readouterr().out
    assert re.match(r"In \d.* the consumer waited \d+ ms of each 100: |epoch 1, 2,000 samples, ", said)


def test_it_has_programs():
    assert len(PROGRAMS) == 2


def test_every_limit_is_in_the_table():
    named = re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(get_args(Limit))
