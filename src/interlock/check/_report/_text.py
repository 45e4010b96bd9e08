"""The report for a terminal: readable without colour and at 80 columns."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from interlock.check._model import MEANINGS
from interlock.check._report._source import Folded, callers, excerpt, inside
from interlock.check._report._words import (
    LIMITS,
    OUTCOMES,
    VERDICTS,
    counted,
    does,
    headline,
    listed,
    replay_command,
    runs_in_short,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.check._model import Place, Report
    from interlock.check._report._review import Finding, Review

_STYLES = {"witnessed": "bold red", "race": "bold red", "may-race": "bold yellow"}
_OUTCOME_STYLES = {"clean": "green", "hazards": "red", "failed": "red", "diverged": "magenta"}


def as_text(review: Review, *, width: int = 80, replay: Callable[[Report, str], str] = replay_command) -> str:
    """Return the review as plain text without colour.

    Args:
        review: What was found.
        width: Columns.
        replay: Returns the command that shows a hazard again, from the report and the schedule's text.
    """
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        print_text(review, console, replay=replay)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def print_text(review: Review, console: Console, *, replay: Callable[[Report, str], str] = replay_command) -> None:
    """Write the review to a console; arguments as in `as_text`."""
    for finding in review.findings:
        _print_finding(finding, review, console, replay)
    _print_failure(review.report, console)
    _print_asides(review, console)
    _print_runs(review.report, console)
    console.print()
    verdict = headline(len(review.findings), review.report)
    bad = bool(review.findings) or any(run.outcome in {"failed", "diverged"} for run in review.report.schedules)
    console.print(
        Text(f"{review.report.program}: {verdict}{_extras(review)}", style="bold red" if bad else "bold green")
    )
    console.print(Text(LIMITS, style="dim"))


def _print_finding(finding: Finding, review: Review, console: Console, replay: Callable[[Report, str], str]) -> None:
    hazard = finding.hazard
    style = _STYLES[hazard.verdict]
    console.print(Text.assemble((hazard.code, style), " ", (hazard.kind, "bold"), "  ", (hazard.verdict, style)))
    console.print(Text(f"{MEANINGS[hazard.kind]} ({VERDICTS[hazard.verdict]})"))
    for number, place in enumerate(hazard.accesses, 1):
        console.print()
        _print_place(number, place, review, console)
    console.print()
    facts = Table.grid(padding=(0, 1))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row(Text("missing:", style="bold"), Text(hazard.missing_edge))
    facts.add_row(Text("fix:", style="bold green"), Text(hazard.fix, style="green"))
    if hazard.witness:
        facts.add_row(Text("witness:", style="bold"), Text(hazard.witness))
    if len(finding.replays) > 1:
        seen = f"{counted(len(finding.replays), 'schedule')}: {listed(finding.replays)}"
        facts.add_row(Text("seen:", style="bold"), Text(f"under {seen}"))
    console.print(Padding(facts, (0, 0, 0, 2), expand=False))
    command = replay(review.report, hazard.replay)  # never wrapped, so that it can be copied
    console.print(Text.assemble("  ", ("replay:", "bold"), f"  {command}"), soft_wrap=True)
    console.print()
    console.print(Text("─" * min(console.width, 80), style="dim"))


def _print_place(number: int, place: Place, review: Review, console: Console) -> None:
    where = f"{shown(place.file, review.root)}:{place.line}"
    console.print(Text.assemble(f"  {number}  ", (where, "bold"), f" in {place.function}"), soft_wrap=True)
    console.print(Padding(Text(does(place)), (0, 0, 0, 5), expand=False))
    lines = excerpt(place.file, place.line)
    if not lines:
        console.print(Text("     (the source cannot be read)", style="dim"))
    digits = len(str(lines[-1].number)) if lines else 0
    for line in lines:
        marker, style = (">", "bold") if line.guilty else (" ", "dim")
        text = Text(f"   {marker} {line.number:>{digits}} │ {line.text}", style=style)
        console.print(text, no_wrap=True, overflow="ellipsis", crop=False)
    if through := inside(place):
        console.print(Text(f"     through {through}", style="dim"), soft_wrap=True)
    for frame in callers(place):
        if isinstance(frame, Folded):
            console.print(Text(f"     … {counted(frame.count, 'library frame')}", style="dim"))
        else:
            file, at, function = frame
            console.print(Text(f"     called from {shown(file, review.root)}:{at} in {function}"), soft_wrap=True)


def _print_failure(report: Report, console: Console) -> None:
    if report.failure is None:
        return
    names = listed(tuple(run.name for run in report.schedules if run.outcome == "failed"))
    console.print(Text(f"the program itself failed under {names}:", style="bold red"))
    for line in report.failure.rstrip().splitlines():
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()


def _print_asides(review: Review, console: Console) -> None:
    report = review.report
    if report.unsupported:
        console.print(Text("not checked, because it cannot be simulated:", style="bold"))
        for one in report.unsupported:
            text = f"{shown(one.file, review.root)}:{one.line}  {one.operation}: {one.why}"
            console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    if review.suppressed:
        console.print(Text("suppressed:", style="bold"))
        for entry in review.suppressed:
            hazard = entry.finding.hazard
            places = ", ".join(f"{shown(place.file, review.root)}:{place.line}" for place in hazard.accesses)
            text = f"{hazard.code} {places}  by the {entry.where}: {entry.reason}"
            console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
        console.print()
    for note in (*review.remarks, *report.notes):
        console.print(Text(f"note: {note}"))
    if review.remarks or report.notes:
        console.print()


def _print_runs(report: Report, console: Console) -> None:
    """Write one line a run; neighbours of one seeded policy and outcome share one."""
    table = Table.grid(padding=(0, 3))
    for name in ("schedule", "outcome", "operations"):
        table.add_column(name, justify="right" if name == "operations" else "left")
    table.add_row(*(Text(name, style="bold") for name in ("schedule", "outcome", "operations")))
    for name, outcome, steps in runs_in_short(report):
        table.add_row(Text(name), Text(OUTCOMES[outcome], style=_OUTCOME_STYLES[outcome]), Text(steps))
    console.print(table)


def _extras(review: Review) -> str:
    parts = []
    if review.suppressed:
        parts.append(f"{len(review.suppressed):,} suppressed")
    if review.report.unsupported:
        parts.append(f"{counted(len(review.report.unsupported), 'operation')} not checked")
    return f" ({', '.join(parts)})" if parts else ""
