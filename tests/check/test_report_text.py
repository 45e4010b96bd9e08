"""The report for a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from interlock.check._model import CODES, MEANINGS, ScheduleRun, Unsupported
from interlock.check._report import _words
from interlock.check._report._review import review
from interlock.check._report._text import as_text, print_text
from interlock.check._report._words import LIMITS


def text_of(made, *hazards, **changes):
    return as_text(review(made.report(*hazards, **changes), root=made.folder))


def flat(text):
    return " ".join(text.split())


def test_a_hazard_shows_both_places_with_their_lines_and_what_to_do(made):
    """All that a reader needs is there: what, where, which order is missing, the fix, the proof, the replay."""
    hazard = made.hazard(verdict="witnessed", witness="saw nan where the plain run has 0.25", replay="pct:3")
    text = text_of(made, hazard)
    assert text.startswith(
        "IL101 early-read  witnessed\nthe host reads before a copy has landed (a wrong value was seen)\n"
    )
    assert "  1  predict.py:9 in predict\n     stream cuda:0/d2h writes bytes 0:4096 (aten::_to_copy)\n" in text
    assert '   >  9 │     host = output.to("cpu", non_blocking=True)\n' in text
    assert "  2  predict.py:14 in save\n     the host reads bytes 0:4096 (numpy read)\n" in text
    assert '   > 14 │     np.save("predictions.npy", host.numpy())\n' in text
    assert "missing: the host reads at predict.py:14, and nothing orders that after stream 'd2h'" in flat(text)
    assert "fix: call event.synchronize() before predict.py:14" in flat(text)
    assert "witness: saw nan where the plain run has 0.25" in flat(text)
    assert "replay: interlock check --replay pct:3 predict.py" in flat(text)


def test_library_frames_are_folded_and_those_outside_the_program_left_out(made):
    text = text_of(made, made.hazard())
    assert "     through 1 library frame, down to module.py:30 in to\n" in text
    assert "     … 2 library frames\n     called from predict.py:18 in main\n" in text
    assert "runpy" not in text
    assert text.count("library frame") == 2 * 2, "none outside of the program's outermost frame"


def test_two_lines_of_context_are_shown_without_blank_edges(made):
    lines = text_of(made, made.hazard()).splitlines()
    assert [line[5:7].strip() for line in lines if " │ " in line] == ["7", "8", "9", "10", "13", "14"]


def test_a_source_that_is_gone_is_said_to_be(made):
    gone = made.place(3, "f", "write", "cuda:0/s", "copy", file="/nowhere/gone.py")
    text = text_of(made, made.hazard(accesses=(gone, made.read)))
    assert "  1  /nowhere/gone.py:3 in f\n" in text
    assert "(the source cannot be read)" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_but_paths_is_wider_than_the_terminal(made, width):
    made.edit("non_blocking=True)", f"non_blocking=True)  # {'long ' * 60}")
    report = made.report(
        made.hazard(witness="word " * 50), unsupported=(Unsupported("aten::foo", str(made.file), 3, "why " * 40),)
    )
    text = as_text(review(report, root=made.folder), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" in text


def test_colour_adds_nothing_but_colour(made):
    found = review(made.report(made.hazard(), notes=("[red] is not markup",)), root=made.folder)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        print_text(found, console)
    coloured = capture.get()
    assert "\x1b[" in coloured
    assert flat(re.sub(r"\x1b\[[\d;]*m", "", coloured)) == flat(as_text(found))
    assert "[red] is not markup" in as_text(found)


def test_the_same_pair_of_places_is_shown_once_with_the_schedules_that_showed_it(made):
    text = text_of(made, *(made.hazard(replay=name) for name in ("lazy", "lazy", "starve:d2h", "pct:1")))
    assert text.count("IL101") == 1
    assert "seen: under 3 schedules: lazy, starve:d2h, pct:1" in flat(text)
    assert "1 hazard found in 2 runs" in text


def test_each_schedule_has_a_line_and_equal_runs_of_a_seeded_one_share_theirs(made):
    runs = [ScheduleRun("lazy", 12, "hazards"), ScheduleRun("starve:d2h", 12, "failed")]
    runs += [ScheduleRun(f"pct:{seed}", 10 + seed, "clean") for seed in range(3)]
    runs += [ScheduleRun("pct:3", 9, "hazards"), ScheduleRun("pct:4", 9, "diverged")]
    rows = [line.split("  ") for line in text_of(made, schedules=tuple(runs)).splitlines()]
    table = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["lazy", "hazards", "12"] in table
    assert ["starve:d2h", "program failed", "12"] in table
    assert ["pct:0 … pct:2 (3)", "clean", "10 to 12"] in table
    assert ["pct:3", "hazards", "9"] in table
    assert ["pct:4", "unexplained value", "9"] in table


def test_what_is_not_checked_and_what_cannot_be_shown_is_said(made):
    unsupported = Unsupported("aten::resize_", str(made.file), 7, "its storage may not change")
    text = text_of(made, unsupported=(unsupported,), notes=("torch.compile ran eagerly",))
    assert "  predict.py:7  aten::resize_: its storage may not change\n" in text
    assert "note: torch.compile ran eagerly\n" in text
    assert "predict.py: no hazard found in 2 runs (1 operation not checked)\n" in text
    assert flat(text).endswith(flat(LIMITS))


def test_the_program_s_own_failure_is_shown_without_frames_of_ours(made):
    failure = (
        "Traceback (most recent call last):\n"
        f'  File "{_words.__file__}", line 5, in _run\n    runpy.run_path(name)\n'
        '  File "<frozen runpy>", line 88, in _run_code\n'
        f'  File "{made.file}", line 18, in main\n    predict(None, [], None)\n    ^^^^^^^\n'
        "ValueError: no batches\n"
    )
    text = text_of(made, failure=failure, schedules=(ScheduleRun("lazy", 3, "failed"),))
    assert "the program itself failed under lazy:\n  Traceback (most recent call last):\n" in text
    assert f'    File "{made.file}", line 18, in main\n      predict(None, [], None)\n' in text
    assert "  ValueError: no batches\n" in text
    assert "_words" not in text
    assert "runpy" not in text
    assert "predict.py: the program itself failed; no hazard found in 1 run\n" in text


def test_every_kind_has_a_code_of_its_own_and_a_meaning():
    assert set(CODES) == set(MEANINGS)
    assert len(set(CODES.values())) == len(CODES)
