"""Every program of the corpus is judged right, under every schedule."""

from __future__ import annotations

import sys

KNOWN_MISSES: dict[str, str] = {}
"""Programs that are not found, by name, each with the reason."""
if sys.version_info < (3, 13):
    KNOWN_MISSES["b117_agent_with_a_buffer"] = (
        "a watcher looks into the caller's variables when the pinned buffer changes, and before Python 3.13 that keeps "
        "them alive until the function ends: the tensor is not freed where the program says so"
    )


def test_a_buggy_program_is_found_once_with_its_kind_and_its_two_lines(program, table):
    """Where a family of schedules finds something, it is this and nothing else; where it must, it does."""
    found = table.findings(program)
    if program.name in KNOWN_MISSES:
        assert not any(program.guilty in places for places in found.values()), "found now: take it off the list"
        return
    assert set().union(*found.values()) == {program.guilty}
    missed = [family for family in program.must if not found[family]]
    assert not missed


def test_a_fixed_program_is_silent(program, table):
    for _, schedule in table.schedules_of(program.source.fixed):
        report = table.run(program.source.fixed, schedule)
        assert (schedule, report.hazards, report.unsupported, report.failure) == (schedule, (), (), None)


def test_a_control_is_silent(control, table):
    for _, schedule in table.schedules_of(control.source.program):
        report = table.run(control.source.program, schedule)
        assert (schedule, report.hazards, report.unsupported, report.failure) == (schedule, (), (), None)


def test_the_corpus_is_large_and_says_what_it_is(table):
    corpus = table.programs()
    assert len({program.entry for program in corpus}) >= 45
    assert len(table.controls()) >= 20
    for program in corpus:
        assert program.first, program.path
        assert program.second, program.path
        assert set(program.must) <= set(table.FAMILIES), program.path
        assert program.path.name.startswith(program.entry.lower()), program.path


def test_the_page_is_up_to_date(table):
    assert table.DOCUMENT.read_text(encoding="utf-8") == table.render(table.programs(), table.controls()), (
        "run python tests/litmus/table.py"
    )


def test_a_known_miss_is_a_program_and_has_a_reason(table):
    names = {program.name for program in table.programs()}
    assert set(KNOWN_MISSES) <= names
    assert all(KNOWN_MISSES.values())
