"""`interlock verify SINK`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from interlock.cli._exits import Exit, say
from interlock.drain import verify_sink

if TYPE_CHECKING:
    from interlock.drain import VerifyReport


@click.command()
@click.argument("sink")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(sink: str, *, as_json: bool) -> int:
    """Read SINK whole and check every hash and every id.

    Exit codes: 0 it is whole, 1 it is damaged, 2 it is no sink. Rows that are still missing are no damage.
    """
    report = verify_sink(sink)
    click.echo(json.dumps(report.as_dict()) if as_json else table(report))
    for shard, what in report.problems:
        say(f"error: shard {shard} of {sink} is damaged: {what}")
    return Exit.DONE if report.ok else Exit.DAMAGED


def table(report: VerifyReport) -> str:
    """Return a report for people."""
    missing = "" if report.missing is None else f", {report.missing:,} missing"
    lines = [
        f"rows    {report.rows:,} found{missing}, {report.duplicates:,} twice",
        f"shards  {report.shards:,} read",
        "whole   yes" if report.ok else f"whole   no: {len(report.problems)} problems",
    ]
    return "\n".join(lines)
