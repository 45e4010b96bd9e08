"""The programs that docs/programs.md lists run clean under `interlock check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlock.check import check_program

ROOT = Path(__file__).parents[2]
LISTED = re.findall(r"`interlock check (examples/\S+)`", (ROOT / "docs/programs.md").read_text(encoding="utf-8"))


def test_every_clean_example_is_listed():
    assert {f"examples/clean/{path.name}" for path in (ROOT / "examples/clean").glob("*.py")} <= set(LISTED)


@pytest.mark.parametrize("program", LISTED)
def test_a_listed_program_is_clean(program):
    report = check_program([str(ROOT / program)], schedules=["lazy", "eager"])
    assert (report.failure, report.hazards, report.unsupported) == (None, (), ())
    assert [run.outcome for run in report.schedules] == ["clean", "clean"]
