"""Words that all reports share, so that a terminal, a page and a code scanner say the same."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.check._model import Outcome, Place, Report, ScheduleRun

LIMITS = (
    "A simulation shows missing order, not speed. It cannot show real overlap, races inside a kernel, faults of "
    "drivers and devices, or the order inside compiled graphs. A clean run is no proof: only what ran was checked."
)
"""What no report of a simulation may be silent about."""

VERDICTS = {
    "witnessed": "a wrong value was seen",
    "race": "both accesses happened, and nothing orders them",
    "may-race": "one of the two accesses may not have happened: the memory was handed to code that cannot be watched",
}
"""Verdict in one line, the strongest first."""

OUTCOMES = {
    "clean": "clean",
    "hazards": "hazards",
    "failed": "program failed",
    "diverged": "unexplained value",
}
"""Outcome of a run, as a reader sees it."""

_VERBS = {"read": "reads", "write": "writes", "free": "gives away", "lent": "holds"}


def who(timeline: str) -> str:
    """Return a timeline as the subject of a sentence."""
    if timeline.partition(":")[0] == "host":
        return "the host"
    return f"stream {timeline}" if "/" in timeline else timeline


def does(place: Place) -> str:
    """Return one access as a sentence without its place."""
    return f"{who(place.timeline)} {_VERBS[place.mode]} bytes {place.bytes} ({place.operation})"


def counted(count: int, noun: str) -> str:
    """Return `1 hazard`, `2 hazards`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: tuple[str, ...], most: int = 4) -> str:
    """Return names as a list of bounded length."""
    rest = len(names) - most
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:most])} and {rest} more"


def shown(file: str, root: Path) -> str:
    """Return a file as a reader names it: relative to `root` if it lies there."""
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_absolute() and path.is_relative_to(root) else file


def runs_in_short(report: Report) -> list[tuple[str, Outcome, str]]:
    """Return schedule, outcome and operations of each run; equal neighbours of a seeded policy make one entry."""
    entries: list[tuple[str, Outcome, str]] = []
    for (policy, outcome), group in itertools.groupby(report.schedules, key=_sort_of_run):
        runs = list(group)
        if len(runs) > 1 and policy in {"pct", "random"}:
            steps = sorted({run.steps for run in runs})
            span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
            entries.append((f"{runs[0].name} … {runs[-1].name} ({len(runs)})", outcome, span))
        else:
            entries += [(run.name, run.outcome, f"{run.steps:,}") for run in runs]
    return entries


def _sort_of_run(run: ScheduleRun) -> tuple[str, Outcome]:
    return run.name.partition(":")[0], run.outcome


def replay_command(report: Report, schedule: str) -> str:
    """Return the command that runs the program under one schedule again."""
    return f"interlock check --replay {shlex.quote(schedule)} {report.program}"


def headline(hazards: int, report: Report) -> str:
    """Return the verdict on a program in one sentence."""
    runs = counted(len(report.schedules), "run")
    found = counted(hazards, "hazard") if hazards else "no hazard"
    if report.failure is not None and not hazards:
        return f"the program itself failed; {found} found in {runs}"
    diverged = sum(run.outcome == "diverged" for run in report.schedules)
    if diverged:
        return f"{found} found in {runs}; {counted(diverged, 'run')} gave a value that Interlock cannot explain"
    return f"{found} found in {runs}"
