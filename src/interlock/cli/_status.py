"""`interlock status SINK`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from interlock.cli._exits import Exit
from interlock.drain import read_status

if TYPE_CHECKING:
    from interlock.drain import SinkStatus


@click.command()
@click.argument("sink")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(sink: str, *, as_json: bool) -> int:
    """Tell how far SINK is: rows committed, failed and missing. Also while it is written."""
    found = read_status(sink)
    click.echo(json.dumps(found.as_dict()) if as_json else table(found))
    return Exit.DONE


def table(found: SinkStatus) -> str:
    """Return a status for people."""
    total = "" if found.rows_total is None else f" of {found.rows_total:,}"
    missing = "" if found.rows_missing is None else f", {found.rows_missing:,} missing"
    state = "being written now" if found.is_written else "nobody writes to it"
    lines = [
        f"rows    {found.rows_committed:,}{total} committed{missing}, {found.rows_failed:,} failed",
        f"shards  {found.shards:,}, {found.bytes:,} bytes",
        f"state   {state}",
    ]
    if found.fsync == "never":
        lines.append("fsync   never: a power cut may take rows that are committed")
    if len(found.ranks) > 1:
        lines += [
            f"rank {one.rank}  {one.rows:,} rows in {one.shards:,} shards{', writing' if one.is_written else ''}"
            for one in found.ranks
        ]
    lines += [f"failed  {one.id}: {one.reason} (tried {one.attempts} times)" for one in found.failures]
    more = found.rows_failed - len(found.failures)
    return "\n".join([*lines, f"        and {more:,} more"] if more > 0 else lines)
