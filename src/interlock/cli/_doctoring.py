"""The work of `interlock doctor`: examine, render. Apart from its command, so that the others start without rich."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from interlock.cli._diagnosis._examine import examine
from interlock.cli._diagnosis._text import as_text, print_text
from interlock.cli._exits import Exit
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def run(*, sink: str | None, quick: bool, as_json: bool) -> int:
    """Examine the machine and print what was found.

    Args:
        sink: Folder whose storage is measured, if any.
        quick: Measure nothing.
        as_json: Print one JSON object in place of text.

    Returns:
        The exit code.

    Raises:
        UsageError: `sink` is not a folder, or excluded by `quick`.
    """
    if sink is not None and quick:
        raise UsageError("--sink and --quick exclude each other", hint="leave one of them out")
    if sink is not None and not Path(sink).is_dir():
        raise UsageError(f"there is no folder {sink}", hint="give the folder that a sink is to lie in")
    with _doing() as tell:
        report = examine(quick=quick, sink=sink, tell=tell)
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    else:
        console = Console(highlight=False, markup=False, emoji=False)
        if console.is_terminal:
            print_text(report, console)
        else:
            click.echo(as_text(report, width=console.width), nl=False)
    return Exit.BROKEN if report.broken else Exit.DONE


@contextlib.contextmanager
def _doing() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is done now; say nothing elsewhere."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stdout.isatty()):
        yield lambda _: None
        return
    with console.status("looking at this machine") as status:
        yield status.update
