"""Sessions: one at a time, undone whole; programs under all schedules; reports between processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from interlock.check import HazardError, check_program, current_session, simulate
from interlock.check._model import Hazard, Place, Report, ScheduleRun, Unsupported
from interlock.check._program import merged
from interlock.check._sites import is_library, user_frame
from interlock.check._wire import from_text, to_text
from interlock.errors import UsageError

EARLY = """
import torch

x = torch.ones(8, device="cuda")
host = (x * 3).to("cpu", non_blocking=True)
total = float(host.sum())
"""

WAITS = """
import torch

x = torch.ones(8, device="cuda")
host = (x * 3).to("cpu", non_blocking=True)
torch.cuda.synchronize()
assert float(host.sum()) == 24
"""


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def place(line=1):
    return Place("p.py", line, "f", "copy", "cuda:0/a", "0:8", "write", (("p.py", line, "f"),))


def hazard(schedule="lazy", witness=None, line=2):
    return Hazard("IL101", "early-read", "race", (place(), place(line)), "missing", "fix", witness, schedule)


def report(*hazards, schedule="lazy", failure=None):
    unsupported = (Unsupported("op", "p.py", 3, "why"),)
    return Report("p.py", (ScheduleRun(schedule, 4, "hazards"),), hazards, unsupported, failure, ("note",))


def test_a_report_survives_the_way_between_processes():
    given = report(hazard(), failure="Traceback")
    assert from_text(to_text(given, ("a", "b"))) == (given, ("a", "b"))
    with pytest.raises(ValueError, match="no report"):
        from_text('{"report": 3}')


def test_runs_are_merged_with_each_pair_of_places_once_and_its_witness():
    found = merged([report(hazard(), hazard(line=9)), report(hazard("eager", "saw nan"), schedule="eager")])
    assert [run.name for run in found.schedules] == ["lazy", "eager"]
    assert [(one.accesses[1].line, one.witness) for one in found.hazards] == [(2, "saw nan"), (9, None)]
    assert len(found.unsupported) == 1
    assert found.notes == ("note",)


def test_only_one_simulation_at_a_time_and_it_ends_with_its_block():
    assert current_session() is None
    with simulate("lazy") as session:
        assert current_session() is session
        with pytest.raises(UsageError, match="active already"), simulate("eager"):
            pass
    assert current_session() is None
    with pytest.raises(UsageError, match="no schedule is called 'never'"):
        simulate("never").__enter__()
    assert current_session() is None


def test_leaving_a_simulation_raises_what_was_found_with_both_places():
    import torch  # noqa: PLC0415 - the simulation patches it

    def early():
        host = (torch.ones(4, device="cuda") * 2).to("cpu", non_blocking=True)
        float(host.sum())

    with pytest.raises(HazardError, match="IL101 early-read") as caught:
        simulate("lazy")(early)()
    first, second = caught.value.report.hazards[0].accesses
    assert first.file == second.file == __file__
    assert second.line == first.line + 1
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")


def test_a_decorated_function_runs_in_a_simulation_of_its_own():
    @simulate("eager")
    def inside():
        import torch  # noqa: PLC0415 - as above

        return float((torch.ones(4, device="cuda") * 2).sum()), str(current_session().schedule)  # type: ignore[union-attr]

    assert inside() == (8.0, "eager")
    assert current_session() is None


def test_a_program_is_run_under_each_schedule_and_its_lines_are_named(tmp_path):
    path = program(tmp_path, EARLY)
    found = check_program([path], schedules=["lazy", "eager", "starve", "pct:2"], seed=5)
    assert [run.name for run in found.schedules][:2] == ["lazy", "eager"]
    assert {"pct:5", "pct:6"} <= {run.name for run in found.schedules}
    assert any(run.name.startswith("starve:") for run in found.schedules)
    assert {(h.kind, h.accesses[0].line, h.accesses[1].line) for h in found.hazards} == {("early-read", 5, 6)}
    assert all(h.accesses[0].file == path for h in found.hazards)
    assert found.failure is None


def test_a_program_that_waits_is_clean_under_each_schedule(tmp_path):
    found = check_program([program(tmp_path, WAITS)])
    assert found.hazards == ()
    assert {run.outcome for run in found.schedules} == {"clean"}


def test_a_program_that_fails_is_told_with_its_traceback(tmp_path):
    found = check_program([program(tmp_path, "import sys\nraise KeyError('mine')\n")], schedules=["lazy"])
    assert found.failure is not None
    assert "KeyError: 'mine'" in found.failure
    left = check_program([program(tmp_path, "import sys\nsys.exit(4)\n")], schedules=["lazy"])
    assert left.failure is not None
    assert "exit code 4" in left.failure
    killed = check_program([program(tmp_path, "import os\nos._exit(0)\n")], schedules=["lazy"])
    assert killed.failure == "the process ended before the program did"


def test_arguments_reach_the_program_and_what_it_prints_is_shown_once(tmp_path):
    path = program(tmp_path, "import sys\nprint('got', sys.argv[1:], __name__)\n")
    code = (
        f"from interlock.check import check_program; check_program([{path!r}, '-x', '3'], schedules=['lazy', 'eager'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "got ['-x', '3'] __main__\n"


def test_what_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no script"):
        check_program([str(tmp_path / "missing.py")])
    with pytest.raises(UsageError, match="no schedule is called"):
        check_program([program(tmp_path, "")], schedules=["sometimes"])


def test_a_site_points_at_the_program_s_own_line():
    library = (subprocess.__file__, 10, "run")
    assert is_library(subprocess.__file__)
    assert not is_library(__file__)
    assert user_frame((library, (__file__, 3, "f"))) == (__file__, 3, "f")
    assert user_frame(()) == ("<unknown>", 0, "<unknown>")
