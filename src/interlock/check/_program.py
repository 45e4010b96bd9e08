"""A whole program under several schedules, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.check._model import Hazard, Report, ScheduleRun, Unsupported
from interlock.check._wire import from_text
from interlock.devices import parse_schedule
from interlock.errors import InternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_SCHEDULES = ("lazy", "eager", "starve", "pct:8")
"""Reads too early, writes too early; uses too long; each stream late; eight random orders."""


def check_program(
    program: Sequence[str], *, module: bool = False, schedules: Sequence[str] = DEFAULT_SCHEDULES, seed: int = 0
) -> Report:
    """Run a program once under each schedule and report the hazards of all runs.

    Args:
        program: A script, or the name of a module, and its arguments.
        module: Whether the first of them is a module, as with `python -m`.
        schedules: Texts as in `parse_schedule`; `starve` stands for one run for each stream that the program uses,
            `pct:N` for N random orders.
        seed: First seed of the random orders.

    Returns:
        One report: each pair of places once, with the first schedule that showed it.

    Raises:
        UsageError: There is no such script or schedule.

    Blocks: until the last run has ended. What the program prints in the first run is shown.
    """
    if not program:
        raise UsageError("there is no program to check", hint="name a script, or -m and a module")
    if not module and not Path(program[0]).is_file():
        raise UsageError(f"there is no script {program[0]}", hint="name a Python file, or use -m MODULE")
    for text in schedules:
        if text != "starve":
            parse_schedule(text)
    with tempfile.TemporaryDirectory(prefix="interlock-check-") as folder:
        spec = {
            "program": list(program),
            "module": module,
            "schedules": list(schedules),
            "seed": seed,
            "folder": folder,
        }
        done = subprocess.run(  # noqa: S603 - the user's own program
            [sys.executable, "-m", "interlock.check._runner", json.dumps(spec)], check=False
        )
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.json"))]
    if not texts:
        raise InternalError(f"no run of {program[0]} left a report", why=f"the runner ended with {done.returncode}")
    return merged([from_text(text)[0] for text in texts])


def merged(reports: Sequence[Report]) -> Report:
    """Return one report of several runs of a program."""
    hazards: dict[tuple[object, ...], Hazard] = {}
    for report in reports:
        for hazard in report.hazards:
            places = tuple((place.file, place.line) for place in hazard.accesses)
            known = hazards.get((hazard.kind, places))
            if known is None or (hazard.witness and not known.witness):
                hazards[hazard.kind, places] = hazard
    return Report(
        program=reports[0].program,
        schedules=tuple(run for report in reports for run in report.schedules),
        hazards=tuple(hazards.values()),
        unsupported=tuple(_once(entry for report in reports for entry in report.unsupported)),
        failure=next((report.failure for report in reports if report.failure), None),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _once(entries: Iterable[Unsupported]) -> Iterable[Unsupported]:
    return {(entry.operation, entry.file, entry.line): entry for entry in entries}.values()


def crashed(program: str, schedule: str, why: str) -> Report:
    """Return the report of a run that ended before it could make one."""
    return Report(program, (ScheduleRun(schedule, 0, "failed"),), (), (), failure=why)
