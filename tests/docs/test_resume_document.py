"""`docs/resume.md` says what is true: its programs run, and its figures hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from interlock import Feed, Shard

TEXT = (Path(__file__).parents[2] / "docs" / "resume.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs(number, capsys):
    exec(compile(PROGRAMS[number], f"program {number}", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own text
    if "shuffle_quality" in PROGRAMS[number]:
        assert capsys.readouterr().out.startswith("100 chunks in random order, 16 mixed at a time")


def test_it_has_programs():
    assert len(PROGRAMS) == 5


def test_a_state_is_as_small_as_it_says():
    state = Feed(np.arange(10**6), batch_size=3, shuffle=True).state_dict()
    assert len(state) == 8
    assert len(json.dumps(state)) < 160


@pytest.mark.parametrize("rest", [1, 2, 5, 11])
@pytest.mark.parametrize(
    ("tail", "rows"),
    [
        ("exact", lambda m, w, r: m // w + (r < m % w)),
        ("pad", lambda m, w, _: -(-m // w)),
        ("drop", lambda m, w, _: m // w),
    ],
)
def test_the_table_of_tails_is_true(tail, rows, rest):
    for rank in range(3):
        feed = Feed(np.arange(24 + rest), batch_size=4, shard=Shard(rank, 3, tail), workers=0)
        assert sum(len(batch) for batch in feed) == 8 + rows(rest, 3, rank)
