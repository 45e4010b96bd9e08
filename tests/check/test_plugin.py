"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import interlock.check._report._text
import interlock.check._session  # noqa: F401 - pytester drops what is first imported inside a run, and halves a package

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "no:interlock", "-p", "interlock._pytest_plugin", "-p", "no:hypothesispytest")
"""By its module, so that it need not be installed; hypothesis' own plugin takes a second a run."""

HEAD = """
import pytest
from interlock._core._events import Access, Region, emit, host_timeline, new_allocation_id
from interlock._core._sites import here

def race(kind="read"):
    region = Region(new_allocation_id(), 0, 64)
    emit(Access("cuda:0/d2h", region, "write", "copy", issuer=host_timeline(), site=here()))
    emit(Access(host_timeline(), region, kind, "numpy " + kind, site=here()))  # second

def schedule():
    from interlock.check import current_session
    session = current_session()
    return session and str(session.schedule)
"""


@pytest.fixture
def run(pytester):
    """Run the tests in a text in this process."""

    def run(text, *arguments):
        pytester.makepyfile(test_it=HEAD + text)
        return pytester.runpytest(*PLUGIN, *arguments)

    return run


def names(result):
    """Return the ids of the tests that ran, with `-v`."""
    return re.findall(r"^(test_it\.py::\S+) (?:PASSED|FAILED)", result.stdout.str(), re.MULTILINE)


def test_a_marked_test_runs_once_under_each_schedule_and_its_id_says_which(run):
    result = run(
        """
        @pytest.mark.interlock(schedules=("lazy", "starve:cuda:0/d2h", "pct:3"))
        def test_it(request):
            assert request.node.name == f"test_it[{schedule()}]"
        """.replace("\n        ", "\n"),
        "-v",
        "--strict-markers",
    )
    result.assert_outcomes(passed=3)
    assert names(result) == [f"test_it.py::test_it[{name}]" for name in ("lazy", "starve:cuda:0/d2h", "pct:3")]


@pytest.mark.parametrize(
    ("mark", "schedules"),
    [("", ["lazy", "eager"]), ("('eager')", ["eager"]), ("(schedules=['pct:1', 'lazy'])", ["pct:1", "lazy"])],
)
def test_the_marker_takes_schedules_in_each_usual_form(run, mark, schedules):
    result = run(f"@pytest.mark.interlock{mark}\ndef test_it(): pass\n", "-v")
    assert names(result) == [f"test_it.py::test_it[{name}]" for name in schedules]


def test_a_test_with_a_hazard_fails_with_the_report_and_how_to_run_it_again(run):
    result = run("@pytest.mark.interlock(schedules=['lazy'])\ndef test_it():\n    race()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "IL101 early-read  race",
            "  1  test_it.py:7 in race",
            "     called from test_it.py:16 in test_it",
            "  2  test_it.py:8 in race",
            "   > * emit(Access(host_timeline(), region, kind*",
            "  replay:  pytest 'test_it.py::test_it[[]lazy[]]'",
        ]
    )
    assert "_pytest_plugin" not in result.stdout.str(), "no traceback of ours"


def test_places_are_named_from_where_pytest_was_started(run, pytester):
    """Also if the test itself changes the folder, and the root of the project is another one."""
    pytester.makeini("[pytest]")
    pytester.mkdir("sub")
    os.chdir(pytester.path / "sub")
    body = "monkeypatch.chdir(tmp_path); race()"
    result = run(
        f"@pytest.mark.interlock('lazy')\ndef test_it(tmp_path, monkeypatch): {body}\n",
        str(pytester.path / "test_it.py"),
    )
    result.stdout.fnmatch_lines(
        [f"  1  {pytester.path}/test_it.py:7 in race", "  replay:  pytest '../test_it.py::test_it[[]lazy[]]'"]
    )


def test_a_test_that_fails_by_itself_keeps_its_traceback_and_carries_the_report(run):
    result = run("@pytest.mark.interlock('lazy')\ndef test_it():\n    race()\n    assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">       assert 1 == 2", "*- Captured interlock call -*", "IL101 early-read  race"])


def test_a_hazard_that_is_suppressed_with_a_reason_does_not_fail(run, monkeypatch):
    text = "@pytest.mark.interlock('lazy')\ndef test_it():\n    race()\n"
    run(text).assert_outcomes(failed=1)
    monkeypatch.setitem(globals(), "HEAD", HEAD.replace("# second", "# interlock: ignore[IL101] known"))
    run(text).assert_outcomes(passed=1)


def test_without_the_marker_and_the_option_nothing_changes_and_nothing_is_loaded(pytester):
    """The plugin costs nothing until it is asked for."""
    pytester.makepyfile("import sys\ndef test_it():\n    assert 'interlock.check' not in sys.modules\n")
    program = (
        "import sys, interlock._pytest_plugin; sys.exit(any(n in sys.modules for n in ('numpy', 'torch', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1)


def test_the_option_is_for_every_test_and_takes_no_folder_for_a_schedule(run):
    text = """
def test_one(): assert schedule() in {"lazy", "eager"}

@pytest.mark.parametrize("number", [1, 2])
def test_two(number): race()

@pytest.mark.interlock('pct:1')
def test_three(): assert schedule() == "pct:1"
"""
    result = run(text, "--interlock", "test_it.py", "-v")
    result.assert_outcomes(passed=3, failed=4)
    assert len(names(result)) == 7
    result.stdout.fnmatch_lines(["  replay:  pytest --interlock=eager 'test_it.py::test_two[[]eager-2[]]'"])


def test_the_option_takes_schedules(run):
    result = run("def test_it(): assert schedule() == 'random:4'\n", "--interlock=random:4")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", [("--interlock=lzay",), ("--interlock=lazy,",)])
def test_a_schedule_that_is_none_is_wrong_usage(run, arguments):
    result = run("def test_it(): pass\n", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --interlock names the schedule '*'; there are lazy, eager, *"])


def test_a_marker_with_a_schedule_that_is_none_is_an_error_at_its_test(run):
    result = run("@pytest.mark.interlock('lzay')\ndef test_it(): pass\n")
    assert result.ret != 0
    assert "the marker of test_it.py::test_it names the schedule 'lzay'" in result.stdout.str() + result.stderr.str()


def test_fixtures_of_a_test_are_inside_its_simulation_and_simulations_do_not_leak(run):
    text = """
@pytest.fixture
def resource():
    assert schedule() is not None
    yield schedule()
    assert schedule() is not None

@pytest.mark.interlock
def test_one(resource): assert resource == schedule()

def test_two(): assert schedule() is None
"""
    run(text).assert_outcomes(passed=3)


def test_tests_that_cannot_be_reached_are_counted(run):
    text = """
import unittest

class TestOld(unittest.TestCase):
    def test_it(self): pass
"""
    result = run(text, "--interlock")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["interlock: 1 collected tests (*ran without a simulation"])


def test_the_plugin_is_installed_with_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"interlock": "interlock._pytest_plugin"}
