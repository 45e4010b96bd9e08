"""`docs/explain.md` says what is true: its programs run, and it names every limit and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from interlock.drain import _attribution as of_drain
from interlock.drain._times import WRITER_PHASES
from interlock.feed._attribution import Limit

TEXT = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


FEED, DRAIN = TEXT.split("## Ask a drain")
SAYS = [
    r"In \d.* the consumer waited \d+ ms of each 100: ",
    r"epoch 1, 2,000 samples, ",
    r"In \d.* the drain kept the producer for \d+ ms of each 100: .* The function that is the sink is the limit",
    r"$",
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number, capsys):
    exec(compile(PROGRAMS[number], f"program {number}", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own text
    assert re.match(SAYS[number], capsys.readouterr().out)


def test_it_has_programs():
    assert len(PROGRAMS) == len(SAYS)


def test_every_limit_is_in_the_table():
    named = re.findall(r"^\| `([a-z-]+)` \|", FEED, re.MULTILINE)
    assert sorted(named) == sorted(get_args(Limit))


def test_every_limit_and_phase_of_a_drain_is_in_its_tables():
    named = re.findall(r"^\| `([a-z-]+)` \|", DRAIN, re.MULTILINE)
    phases = {"loop", "put", "slot", "copy", "flush", *WRITER_PHASES}
    assert set(named) == phases | set(get_args(of_drain.Limit))
