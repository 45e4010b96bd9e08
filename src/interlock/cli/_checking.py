"""The work of `interlock check`: run, review, render. Apart from its command, so that the others start without rich."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from interlock.check import check_program
from interlock.check._report._baseline import baseline_of, baseline_text, read_baseline
from interlock.check._report._html import as_html
from interlock.check._report._json import as_json
from interlock.check._report._review import review
from interlock.check._report._sarif import as_sarif
from interlock.check._report._text import print_text
from interlock.cli._exits import Exit, say
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from interlock.check._report._baseline import Baseline
    from interlock.check._report._review import Review

DEFAULT = "lazy,eager,starve,pct:8"
_RENDERERS: Mapping[str, Callable[[Review], str]] = {"json": as_json, "sarif": as_sarif, "html": as_html}
_STDOUT = "-"


def run(program: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Check a program.

    Args:
        program: A script and its arguments; only the arguments if `options` has a module.
        options: Those of the command, by name.

    Returns:
        The exit code.

    Raises:
        UsageError: An option is not what it should be, or a file cannot be read or written.
    """
    _check_outputs(options)
    module: str | None = options["module"]
    argv = [*([module] if module else []), *program]
    before = read_baseline(Path(options["baseline"])) if options["baseline"] else None
    schedules, seed = _schedules(options)
    with _stdout_for_us(options):
        report = check_program(argv, module=bool(module), schedules=schedules, seed=seed)
    report = replace(report, program=shlex.join([*(["-m"] if module else []), *argv]))
    today = datetime.now(UTC).astimezone().date()
    found = review(report, baseline=before, today=today)
    if options["write_baseline"]:
        accepted = baseline_of(found, _existing(options["write_baseline"]) or before, today)
        _write(options["write_baseline"], baseline_text(accepted))
        found = review(report, baseline=accepted)
    for name, render in _RENDERERS.items():
        if options[name]:
            _write(options[name], render(found))
    if not options["quiet"]:
        print_text(found, Console(stderr=_uses_stdout(options), highlight=False, markup=False, emoji=False))
    return _exit(found)


def _exit(found: Review) -> int:
    """Hazards come first: where one makes the program fail, it is the reason."""
    outcomes = {run.outcome for run in found.report.schedules}
    if found.findings:
        return Exit.HAZARDS
    if found.report.failure is not None:
        return Exit.FAILED
    if "diverged" in outcomes:
        say("error: a value differs and no hazard explains it", hint="this is a bug in Interlock: please report it")
        return Exit.BUG
    return Exit.DONE


def _schedules(options: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return schedules and seed; a seeded schedule that a report names is one run with that seed."""
    replay: str | None = options["replay"]
    if replay is not None:
        if options["schedules"] is not None:
            raise UsageError("--replay and --schedules exclude each other", hint="leave one of them out")
        seeded = re.fullmatch(r"pct:(\d+)", replay)
        return (("pct:1",), int(seeded[1])) if seeded else ((replay,), options["seed"])
    names = tuple(name.strip() for name in (options["schedules"] or DEFAULT).split(","))
    if not all(names):
        raise UsageError(f"--schedules {options['schedules']!r} names a schedule without letters")
    return names, options["seed"]


def _outputs(options: Mapping[str, Any]) -> list[str]:
    return [options[name] for name in (*_RENDERERS, "write_baseline") if options[name]]


def _uses_stdout(options: Mapping[str, Any]) -> bool:
    return _STDOUT in _outputs(options)


def _check_outputs(options: Mapping[str, Any]) -> None:
    """Refuse what could not be written, before the program runs for minutes."""
    outputs = _outputs(options)
    if len(outputs) > len(set(outputs)):
        twice = next(one for one in outputs if outputs.count(one) > 1)
        raise UsageError(f"two reports are to be written to {twice}", hint="give each a file of its own")
    for one in outputs:
        path = Path(one)
        if one != _STDOUT and (path.is_dir() or not path.parent.is_dir()):
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise UsageError(f"{one} cannot be written", why=why)


@contextlib.contextmanager
def _stdout_for_us(options: Mapping[str, Any]) -> Iterator[None]:
    """Send what the program prints to stderr while a report is to go to stdout."""
    if not _uses_stdout(options):
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _write(target: str, text: str) -> None:
    if target == _STDOUT:
        click.echo(text, nl=False)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written", why=str(error)) from error


def _existing(target: str) -> Baseline | None:
    """Return the baseline that is about to be replaced: its reasons and dates are kept."""
    return read_baseline(Path(target)) if target != _STDOUT and Path(target).exists() else None
