"""What counts: each pair once, fingerprints that survive edits, comments in the source, the baseline."""

from __future__ import annotations

import json
from datetime import date

import pytest

from interlock.check._report._baseline import FIRST_REASON, baseline_of, baseline_text, read_baseline
from interlock.check._report._review import review
from interlock.errors import UsageError

TODAY = date(2026, 6, 1)


def found_in(made, *hazards, baseline=None):
    return review(made.report(*hazards), baseline=baseline, today=TODAY, root=made.folder)


def fingerprints(made, *hazards):
    return [finding.fingerprint for finding in found_in(made, *hazards).findings]


# ------------------------------------------------------------ the same pair once


def test_the_strongest_verdict_stands_for_a_pair(made):
    weak, strong = made.hazard(verdict="may-race"), made.hazard(verdict="witnessed", witness="nan", replay="eager")
    (finding,) = found_in(made, weak, strong, made.hazard()).findings
    assert finding.hazard == strong
    assert finding.replays == ("lazy", "eager")


def test_the_order_of_the_two_accesses_does_not_make_another_pair(made):
    turned = made.hazard(accesses=(made.read, made.copy))
    assert len(found_in(made, made.hazard(), turned).findings) == 1


def test_another_kind_or_another_line_is_another_finding(made):
    other_line = made.hazard(accesses=(made.copy, made.place(10, "predict", "read", "host", "numpy read")))
    assert len(found_in(made, made.hazard(), made.hazard("late-landing"), other_line).findings) == 3


# ------------------------------------------------------------ fingerprints


def moved(made, lines):
    copy = made.place(9 + lines, "predict", "write", "cuda:0/d2h", "aten::_to_copy")
    return made.hazard(accesses=(copy, made.place(14 + lines, "save", "read", "host", "numpy read")))


def test_a_fingerprint_survives_edits_that_only_move_its_lines(made):
    before = fingerprints(made, made.hazard())
    made.edit("import numpy as np\n", "import numpy as np\n\n# host = output\nLIMIT = 3\n\n")
    assert fingerprints(made, moved(made, 4)) == before


def test_a_fingerprint_is_the_same_in_another_folder_and_on_other_streams(made, tmp_path_factory):
    other = type(made)(tmp_path_factory.mktemp("elsewhere"))
    renamed = other.place(9, "predict", "write", "cuda:1/stream-7", "aten::copy_")
    assert fingerprints(other, other.hazard(accesses=(renamed, other.read))) == fingerprints(made, made.hazard())


def test_a_fingerprint_changes_with_the_code_the_line_the_function_and_the_kind(made):
    seen = {*fingerprints(made, made.hazard()), *fingerprints(made, made.hazard("late-landing"))}
    made.edit("host.numpy())", "host.numpy().copy())")
    seen.update(fingerprints(made, made.hazard()))
    made.edit("def save(host)", "def save_now(host)")
    seen.update(fingerprints(made, made.hazard()))
    assert len(seen) == 4


def test_equal_lines_of_one_function_have_fingerprints_of_their_own(made):
    made.edit("        save(host)\n", '        host = output.to("cpu", non_blocking=True)\n        save(host)\n')
    first = made.hazard(accesses=(made.copy, made.place(15, "save", "read", "host", "numpy read")))
    second = made.place(10, "predict", "write", "cuda:0/d2h", "aten::_to_copy")
    assert len(set(fingerprints(made, first, made.hazard(accesses=(second, first.accesses[1]))))) == 2


def test_a_program_that_is_no_python_has_fingerprints_all_the_same(made):
    made.file.write_text("def (:\n" * 20, encoding="utf-8")
    assert len(fingerprints(made, made.hazard())) == 1


# ------------------------------------------------------------ comments in the source


@pytest.mark.parametrize("line", ["non_blocking=True)", "host.numpy())"])
def test_a_comment_with_a_reason_on_either_line_suppresses(made, line):
    made.edit(line, f"{line}  # interlock: ignore[IL101] the caller synchronises before it reads")
    found = found_in(made, made.hazard(), made.hazard("late-landing"))
    assert [finding.hazard.kind for finding in found.findings] == ["late-landing"]
    assert [(one.where, one.reason) for one in found.suppressed] == [
        ("source", "the caller synchronises before it reads")
    ]
    assert found.remarks == ()


@pytest.mark.parametrize(
    ("comment", "remark"),
    [
        ("# interlock: ignore[IL101]", "does not count: it gives no reason after ignore[IL101]"),
        ("# interlock: ignore[IL101]  # noqa: E501", "does not count: it gives no reason after ignore[IL101]"),
        ("# interlock: ignore because", "does not count: it names no code, as in ignore[IL101]"),
        ("# interlock: ignore[IL999] because", "names IL999, which is no code"),
    ],
)
def test_a_comment_that_does_not_work_is_reported_and_does_not_count(made, comment, remark):
    made.edit("host.numpy())", f"host.numpy())  {comment}")
    found = found_in(made, made.hazard())
    assert len(found.findings) == 1
    assert found.remarks == (f"the suppression at predict.py:14 {remark}",)


def test_one_comment_may_name_several_codes_and_a_dash_before_the_reason(made):
    made.edit("host.numpy())", "host.numpy())  # interlock: ignore[IL101, IL103] - ordered by the launcher  # noqa: X")
    found = found_in(made, made.hazard(), made.hazard("late-landing"))
    assert found.findings == ()
    assert {one.reason for one in found.suppressed} == {"ordered by the launcher"}


def test_a_comment_for_another_code_is_silent(made):
    made.edit("host.numpy())", "host.numpy())  # interlock: ignore[IL201] other")
    found = found_in(made, made.hazard())
    assert (len(found.findings), found.remarks) == (1, ())


# ------------------------------------------------------------ the baseline


def write(made, plain):
    path = made.folder / "baseline.json"
    path.write_text(plain if isinstance(plain, str) else json.dumps(plain), encoding="utf-8")
    return path


def entry(made, **changes):
    (fingerprint,) = fingerprints(made, made.hazard())
    return {"version": 1, "hazards": [{"fingerprint": fingerprint, "code": "IL101", "reason": "known", **changes}]}


@pytest.mark.parametrize("expires", [None, "2026-06-01", "2027-01-01"])
def test_what_the_baseline_accepts_does_not_count(made, expires):
    baseline = read_baseline(write(made, entry(made, expires=expires)))
    found = found_in(made, made.hazard(), made.hazard("late-landing"), baseline=baseline)
    assert [finding.hazard.kind for finding in found.findings] == ["late-landing"]
    assert [(one.where, one.reason) for one in found.suppressed] == [("baseline", "known")]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"expires": "2026-05-31"}, "it expired on 2026-05-31"), ({"reason": " "}, "it gives no reason")],
)
def test_an_entry_that_expired_or_gives_no_reason_does_not_count_and_is_named(made, changes, problem):
    baseline = read_baseline(write(made, entry(made, **changes)))
    found = found_in(made, made.hazard(), baseline=baseline)
    assert (len(found.findings), found.suppressed) == (1, ())
    assert found.remarks == (f"the baseline's entry for IL101 at predict.py:14 does not count: {problem}",)


def test_entries_that_did_not_appear_are_counted(made):
    baseline = read_baseline(write(made, entry(made)))
    assert found_in(made, baseline=baseline).remarks == (
        "1 hazard of the baseline did not appear: --write-baseline drops what is gone",
    )


def test_a_written_baseline_accepts_what_was_found_and_keeps_reasons_and_dates(made):
    old = read_baseline(write(made, entry(made, expires="2027-01-01")))
    found = found_in(made, made.hazard(), made.hazard("late-landing"), baseline=old)
    text = baseline_text(baseline_of(found, old, TODAY))
    path = write(made, text)
    again = read_baseline(path)
    assert sorted((one.code, one.reason, str(one.expires)) for one in again.entries.values()) == [
        ("IL101", "known", "2027-01-01"),
        ("IL103", FIRST_REASON, "None"),
    ]
    assert found_in(made, made.hazard(), made.hazard("late-landing"), baseline=again).findings == ()
    assert json.loads(text)["hazards"][0]["places"] == ["predict.py:9", "predict.py:14"]
    assert baseline_text(again) == text


def test_writing_a_baseline_anew_drops_dates_that_passed_and_what_is_gone(made):
    old = read_baseline(write(made, entry(made, expires="2026-05-31")))
    (accepted,) = baseline_of(found_in(made, made.hazard(), baseline=old), old, TODAY).entries.values()
    assert (accepted.reason, accepted.expires) == ("known", None)
    assert baseline_of(found_in(made, baseline=old), old, TODAY).entries == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no baseline"),
        ("[]", "is no baseline"),
        ('{"hazards": []}', "'version' is missing"),
        ('{"version": 2, "hazards": []}', "has version 2"),
        ('{"version": 1, "hazards": [{"code": "IL101"}]}', "'fingerprint' is missing"),
        ('{"version": 1, "hazards": [{"fingerprint": "x", "code": "IL101", "expires": "soon"}]}', "soon"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_the_reason(made, text, why):
    with pytest.raises(UsageError, match=why):
        read_baseline(write(made, text))


def test_a_baseline_that_is_not_there_is_refused_with_the_next_step(made):
    with pytest.raises(UsageError, match="--write-baseline"):
        read_baseline(made.folder / "none.json")
