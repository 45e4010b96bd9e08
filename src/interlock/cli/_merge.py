"""`interlock merge SINK`, `interlock compact SINK` and `interlock resume-plan SINK`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from interlock.cli._exits import Exit
from interlock.drain import compact_sink, merge_sink, resume_plan

if TYPE_CHECKING:
    from interlock.drain import MergeReport, RankPlan

_KEEP_FIRST = click.option(
    "--keep-first",
    is_flag=True,
    help="Where ranks wrote other values for one id, keep that of the lowest rank, in place of an error.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@click.argument("sink")
@_KEEP_FIRST
@_JSON
def merge(sink: str, *, keep_first: bool, as_json: bool) -> int:
    """Make one dataset of what the ranks wrote to SINK: one manifest, each row once. Shards without repeats stay.

    Exit codes: 0 it is done, 2 it is no sink, is damaged, is being written, or holds two values for one id, 3 the
    storage failed. Killed at any point, the same command ends the work.
    """
    _show(merge_sink(sink, repeats="first" if keep_first else "same"), as_json=as_json)
    return Exit.DONE


@click.command()
@click.argument("sink")
@click.option(
    "--shard-bytes", type=click.IntRange(min=1), default=256 << 20, show_default=True, help="Most bytes of a new shard."
)
@_KEEP_FIRST
@_JSON
def compact(sink: str, *, shard_bytes: int, keep_first: bool, as_json: bool) -> int:
    """Merge SINK, and write its small shards anew as big ones.

    Exit codes: as of merge. Killed at any point, nothing is lost: the same command, or the next that opens SINK, ends
    what was begun. Do not read the folder by its file names meanwhile.
    """
    report = compact_sink(sink, shard_bytes=shard_bytes, repeats="first" if keep_first else "same")
    _show(report, as_json=as_json)
    return Exit.DONE


def _show(report: MergeReport, *, as_json: bool) -> None:
    click.echo(json.dumps(report.as_dict()) if as_json else table(report))


def table(report: MergeReport) -> str:
    """Return a report for people."""
    lines = [
        f"rows    {report.rows:,}, {report.rows_removed:,} repeats removed",
        f"shards  {report.shards:,}, from {report.ranks:,} ranks",
    ]
    replaced = [f"        {report.shards_replaced:,} small ones went into them"] if report.shards_replaced else []
    return "\n".join(lines + replaced)


@click.command("resume-plan")
@click.argument("sink")
@click.option("--world", type=click.IntRange(min=1), default=1, show_default=True, help="Number of ranks.")
@click.option("--total", type=click.IntRange(min=0), help="Rows of the job, 0 to N - 1. [default: as SINK says]")
@click.option("--ids", is_flag=True, help="With --json: also which ids, as interlock.drain.decode_ids reads them.")
@_JSON
def resume_plan_of(sink: str, *, world: int, total: int | None, ids: bool, as_json: bool) -> int:
    """Tell what each of N ranks has to do of what is not in SINK, as drain.todo(range(total)) gives it to them.

    Exit codes: 0 here it is, 2 it is no sink, or it does not say how many rows there will be.
    """
    plans = resume_plan(sink, world, total)
    rows = sum(len(plan.todo) for plan in plans)
    if as_json:
        ranks = [plan.as_dict(ids=ids) for plan in plans]
        click.echo(json.dumps({"sink": sink, "world": world, "rows": rows, "ranks": ranks}))
    else:
        click.echo("\n".join([f"left    {rows:,} rows", *map(_line, plans)]))
    return Exit.DONE


def _line(plan: RankPlan) -> str:
    told = plan.as_dict()
    span = f", ids {told['first']} to {told['last']}" if told["rows"] else ""
    return f"rank {plan.rank}  {told['rows']:,} rows{span}"
