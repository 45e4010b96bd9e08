"""`interlock check`: options, exit codes, where things are written."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock.check._model import ScheduleRun
from interlock.cli import _checking, main

RACE = '''\
"""A copy is queued on a stream, and the host reads what it writes without waiting; told in events."""

import sys

from interlock._core._events import Access, Region, emit, host_timeline, new_allocation_id
from interlock._core._sites import here

region = Region(new_allocation_id(), 0, 64)
print("arguments", sys.argv[1:])


def copy():
    emit(Access("cuda:0/d2h", region, "write", "copy", issuer=host_timeline(), site=here()))


def read():
    emit(Access(host_timeline(), region, "read", "numpy read", site=here()))


copy()
if "--wait" not in sys.argv:
    read()
'''


class Command:
    """The command line, with a program under check that is not run but reported on."""

    def __init__(self, made, capfd, monkeypatch):
        self.made = made
        self.report = made.report()
        self.asked: dict[str, Any] = {}
        self._capfd = capfd
        monkeypatch.chdir(made.folder)
        monkeypatch.setattr(_checking, "check_program", self._check)

    def _check(self, program, **options):
        self.asked = {"program": list(program), **options}
        os.write(1, b"the program prints\n")  # to the descriptor, as the process of a program under check does
        return self.report

    def __call__(self, *arguments):
        self._capfd.readouterr()
        code = main(["check", *map(str, arguments)])
        out, err = self._capfd.readouterr()
        return code, out, err


@pytest.fixture
def command(made, capfd, monkeypatch):
    return Command(made, capfd, monkeypatch)


# ------------------------------------------------------------ exit codes


def test_a_clean_program_ends_with_0_and_says_so(command):
    code, out, err = command("predict.py")
    assert code == 0
    assert out.startswith("the program prints\n")
    assert "predict.py: no hazard found in 2 runs\n" in out
    assert err == ""


def test_hazards_end_with_1_and_the_report(command):
    command.report = command.made.report(command.made.hazard())
    code, out, _ = command("predict.py")
    assert code == 1
    assert "IL101 early-read  race\n" in out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--no-such-option", "predict.py"),
        ("--seed", "x", "predict.py"),
        ("--schedules", "lazy,,eager", "predict.py"),
        ("--schedules", "lazy", "--replay", "eager", "predict.py"),
        ("--baseline", "none.json", "predict.py"),
        ("--json", "no/such/folder.json", "predict.py"),
        ("--html", ".", "predict.py"),
        ("--json", "-", "--sarif", "-", "predict.py"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line_before_the_program_runs(command, arguments, monkeypatch):
    if not arguments:
        monkeypatch.undo()
    code, out, err = command(*arguments)
    assert (code, out, command.asked) == (2, "", {})
    assert err.startswith("interlock: error: ")
    assert "Traceback" not in err


def test_a_script_that_is_not_there_and_a_schedule_that_is_none_are_wrong_usage(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["check", "nothing.py"]) == 2
    assert "there is no script nothing.py" in capfd.readouterr().err
    (tmp_path / "some.py").write_text("")
    assert main(["check", "--schedules", "lzay", "some.py"]) == 2
    assert "'lzay'" in capfd.readouterr().err


def test_a_program_that_fails_ends_with_3_and_its_traceback(command):
    command.report = command.made.report(
        schedules=(ScheduleRun("lazy", 1, "failed"),), failure="Traceback …\nValueError: no batches\n"
    )
    code, out, _ = command("predict.py")
    assert code == 3
    assert "ValueError: no batches" in out


def test_a_program_that_fails_and_has_hazards_ends_with_1_and_shows_both(command):
    """The hazard is most often why it fails."""
    command.report = command.made.report(command.made.hazard(), failure="ValueError: nan\n")
    code, out, _ = command("predict.py")
    assert code == 1
    assert "IL101" in out
    assert "ValueError: nan" in out


def test_a_value_that_nothing_explains_is_our_bug_and_never_clean(command):
    command.report = command.made.report(schedules=(ScheduleRun("lazy", 1, "diverged"),))
    code, _, err = command("predict.py")
    assert code == 1
    assert "this is a bug in Interlock" in err


# ------------------------------------------------------------ what is asked for


def test_the_default_is_every_kind_of_schedule(command):
    command("predict.py")
    assert command.asked == {
        "program": ["predict.py"],
        "module": False,
        "schedules": ("lazy", "eager", "starve", "pct:8"),
        "seed": 0,
    }


def test_schedules_and_seed_are_handed_on(command):
    command("--schedules", "lazy, pct:2", "--seed", 7, "predict.py")
    assert (command.asked["schedules"], command.asked["seed"]) == (("lazy", "pct:2"), 7)


@pytest.mark.parametrize(
    ("text", "schedules", "seed"),
    [("starve:cuda:0/d2h", ("starve:cuda:0/d2h",), 0), ("pct:5", ("pct:1",), 5), ("random:3", ("random:3",), 0)],
)
def test_a_replay_is_one_run_under_the_schedule_that_was_named(command, text, schedules, seed):
    command("--replay", text, "predict.py")
    assert (command.asked["schedules"], command.asked["seed"]) == (schedules, seed)


@pytest.mark.parametrize(
    ("arguments", "program", "module"),
    [
        (("predict.py", "--json", "x", "-m", "y", "--help"), ["predict.py", "--json", "x", "-m", "y", "--help"], False),
        (("--", "predict.py", "-q"), ["predict.py", "-q"], False),
        (("-m", "pkg.tool", "--quiet", "--seed", "3"), ["pkg.tool", "--quiet", "--seed", "3"], True),
        (("--seed", "3", "-mpkg.tool", "-x"), ["pkg.tool", "-x"], True),
        (("--replay", "-m", "predict.py"), ["predict.py"], False),
    ],
)
def test_arguments_after_the_program_are_the_program_s(command, arguments, program, module):
    command(*arguments)
    assert (command.asked["program"], command.asked["module"]) == (program, module)


def test_the_replay_command_names_the_program_with_its_arguments(command):
    command.report = command.made.report(command.made.hazard())
    assert "interlock check --replay lazy predict.py --rows 3 'a b'\n" in command("predict.py", "--rows", 3, "a b")[1]
    assert "interlock check --replay lazy -m pkg.tool -x\n" in command("-m", "pkg.tool", "-x")[1]


# ------------------------------------------------------------ what is written


def test_each_report_is_written_to_its_file(command):
    command.report = command.made.report(command.made.hazard())
    code, out, err = command("--quiet", "--json", "r.json", "--sarif", "r.sarif", "--html", "r.html", "predict.py")
    assert (code, out, err) == (1, "the program prints\n", "")
    folder = command.made.folder
    assert json.loads((folder / "r.json").read_text())["hazards"][0]["code"] == "IL101"
    assert json.loads((folder / "r.sarif").read_text())["version"] == "2.1.0"
    assert (folder / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_a_report_on_stdout_is_alone_there(command, made):
    """The program's own output and the text go to stderr, so that the report can be piped."""
    command.report = made.report(made.hazard())
    code, out, err = command("--json", "-", "predict.py")
    assert json.loads(out)["hazards"][0]["code"] == "IL101"
    assert err.startswith("the program prints\n")
    assert "IL101 early-read" in err
    assert code == 1
    assert json.loads(command("--quiet", "--sarif", "-", "predict.py")[1])["version"] == "2.1.0"


def test_a_baseline_is_written_once_and_then_nothing_counts(command, made):
    command.report = made.report(made.hazard())
    code, out, _ = command("--write-baseline", "known.json", "predict.py")
    assert (code, "1 suppressed" in out) == (0, True)
    text = (made.folder / "known.json").read_text().replace("was there when the baseline was written", "ticket 12")
    (made.folder / "known.json").write_text(text)
    code, out, _ = command("--baseline", "known.json", "predict.py")
    assert code == 0
    assert "by the baseline: ticket 12" in out
    command.report = made.report(made.hazard(), replace(made.hazard("late-landing")))
    assert command("--baseline", "known.json", "predict.py")[0] == 1
    assert command("--write-baseline", "known.json", "predict.py")[0] == 0
    reasons = [one["reason"] for one in json.loads((made.folder / "known.json").read_text())["hazards"]]
    assert sorted(reasons) == ["ticket 12", "was there when the baseline was written"]


# ------------------------------------------------------------ whole runs


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "race.py").write_text(RACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "race.py"


def test_a_program_is_run_and_its_own_lines_are_reported(script, capfd):
    assert main(["check", "--schedules", "lazy,eager", "--json", "r.json", "race.py", "one", "--json"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("arguments ['one', '--json']\nIL101 early-read  race\n"), err
    (hazard,) = json.loads((script.parent / "r.json").read_text())["hazards"]
    assert [(place["line"], place["function"]) for place in hazard["accesses"]] == [(13, "copy"), (17, "read")]
    assert {Path(place["file"]).resolve() for place in hazard["accesses"]} == {script}
    assert "race.py:22 in <module>" in out


@pytest.mark.usefixtures("script")
def test_a_program_without_the_fault_is_clean_also_as_a_module(capfd):
    assert main(["check", "--schedules", "lazy", "-m", "race", "--wait"]) == 0
    out, _ = capfd.readouterr()
    assert "-m race --wait: no hazard found in 1 run\n" in out


def test_a_program_that_raises_is_shown_with_its_own_frames_only(script, capfd):
    script.write_text("def work():\n    raise ValueError('no batches')\n\n\nwork()\n")
    assert main(["check", "--schedules", "lazy", "race.py"]) == 3
    out, _ = capfd.readouterr()
    assert 'race.py", line 2, in work\n' in out
    assert "ValueError: no batches" in out
    assert "interlock/check" not in out
    assert "runpy" not in out


def test_the_default_schedules_are_eleven_runs_for_a_program_with_one_stream(script, capfd):
    """Eight seeded orders are eight runs, and each stream that the program showed is starved once."""
    assert main(["check", "--quiet", "--json", "r.json", "--seed", "5", "race.py"]) == 1
    runs = [run["name"] for run in json.loads((script.parent / "r.json").read_text())["schedules"]]
    assert runs == ["lazy", "eager", "starve:d2h", *(f"pct:{seed}" for seed in range(5, 13))], capfd.readouterr().err


@pytest.mark.usefixtures("script")
def test_a_run_that_cannot_begin_is_never_taken_for_clean(tmp_path, monkeypatch, capfd):
    """A fault of ours in starting a simulation is not a program without hazards."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['interlock.check._watch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=os.pathsep)
    assert main(["check", "--schedules", "lazy", "race.py", "--wait"]) == 3
    assert "the process ended before the program did" in capfd.readouterr().out
