"""`interlock predict MODEL SOURCE SINK`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from interlock.cli._exits import Exit, say
from interlock.cli._job import Job, Settings
from interlock.cli._metrics import Metrics
from interlock.cli._models import open_model
from interlock.cli._options import batch_depth, columns, image_size, positive, quiet, rank
from interlock.cli._progress import open_progress
from interlock.cli._signals import Stop
from interlock.drain import read_status
from interlock.drain._explain import listed
from interlock.errors import UsageError
from interlock.feed.sources import open_source
from interlock.lowlevel import open_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interlock.cli._job import Outcome
    from interlock.drain import Explanation
    from interlock.lowlevel import Source


_NULL = "null:"
"""The sink that keeps nothing."""
_WIDTH = 80


@click.command()
@click.argument("model")
@click.argument("source")
@click.argument("sink")
@click.option("--batch-size", type=positive, default=64, show_default=True, help="Rows of a batch.")
@click.option(
    "--workers", type=click.IntRange(min=0), help="Threads that read samples. [default: one per processor, at most 8]"
)
@batch_depth
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where batches and model go: auto (where the model is), host, cuda, cuda:N, simulated:SCHEDULE.",
)
@click.option(
    "--to",
    type=click.Choice(["numpy", "torch", "jax", "cupy"]),
    help="Arrays for a MODEL that does not say which. [default: numpy]",
)
@click.option("--limit", type=positive, help="Only the first N rows of SOURCE.")
@click.option(
    "--rank",
    metavar="R/N",
    callback=rank,
    help="Only the share of rank R of N processes that write to SINK. [default: as torchrun says, else 0/1]",
)
@click.option(
    "--max-attempts", type=positive, help="Leave out rows that failed so often, in all runs. [default: try all again]"
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Try a sample that cannot be read, or a batch on which MODEL fails, so often again; then leave out the rows "
    "that fail by themselves. With 0 a MODEL that fails ends the run.",
)
@click.option(
    "--max-failures",
    type=positive,
    default=100,
    show_default=True,
    help="With --retries: end the run when MODEL failed on so many rows with none between that it could do.",
)
@click.option("--restart", is_flag=True, help="Discard what SINK holds.")
@columns
@click.option("--id-column", help="Column that names the rows. [default: the row number]")
@image_size
@click.option("--allow-nan", is_flag=True, help="Write rows that hold NaN, in place of counting them as failed.")
@click.option(
    "--writers", type=positive, help="Threads that write, each a shard of its own. [default: as many as help]"
)
@click.option(
    "--shard-bytes", type=positive, default=64 << 20, show_default=True, help="Size at which a shard is committed."
)
@click.option(
    "--fsync",
    type=click.Choice(["commit", "never"]),
    default="commit",
    show_default=True,
    help="Whether rows are on the storage before they count, or a power cut may take them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option(
    "--metrics",
    metavar="FILE",
    help="Tell FILE every 5 seconds where the time goes: .jsonl gets a line each time, .prom is replaced.",
)
@quiet
def predict(model: str, source: str, sink: str, *, as_json: bool, quiet: bool, **options: Any) -> int:
    """Run MODEL on every row of SOURCE and commit its outputs to SINK.

    MODEL is file.py:NAME or package.module:NAME: a torch module, a jitted JAX function, or a callable from a batch to
    an array or a dict of arrays, first axis samples.

    SOURCE is a .npy file, a folder of images, a Parquet file or folder, an Arrow file (arrow:FILE where its suffix does
    not say so), WebDataset shards (wds:train-{000..146}.tar), the url of one of these, or file.py:NAME.

    SINK is parquet:FOLDER, arrow:, npy:, safetensors:, zarr:, webdataset: or delta:FOLDER. The same command again goes
    on where the last one ended.

    Exit codes: 0 every row is committed, 2 a mistake in the command, 3 rows failed, 130 or 143 interrupted.
    """
    rows = open_source(
        source, image_size=options["image_size"], columns=options["columns"], id_column=options["id_column"]
    )
    left_out = getattr(rows, "links_left_out", 0)  # only a folder of images has it
    if left_out:
        say(f"note: {left_out} links that lead out of {source} are left out")
    _check_apart(source, sink)
    if options["device"] != "auto":
        open_device(options["device"])  # a mistake should show before the sink is touched
    called = open_model(model, options["to"], options["device"])
    fingerprint = {"model": called.fingerprint, "source": rows.fingerprint()}
    settings = Settings(**{name: options[name] for name in Settings.__dataclass_fields__})
    if settings.rank[1] > 1:
        say(f"note: rank {settings.rank[0]} of {settings.rank[1]}: this process does its share of the rows")
    metrics = Metrics(options["metrics"], settings.rank)
    asked: Source = rows if options["limit"] is None else Head(rows, options["limit"])
    with Stop() as stop:
        job = Job(asked, called, sink, settings, fingerprint=fingerprint, total=len(rows), metrics=metrics)
        outcome = job.run(stop, lambda total: open_progress(total, quiet=quiet))
        click.echo(json.dumps(outcome.summary) if as_json else table(outcome.summary, sink, outcome.explanation))
        return _verdict(outcome, stop, sink)


def _verdict(outcome: Outcome, stop: Stop, sink: str) -> int:
    """Return the exit code of a run; raise what ended it early."""
    if outcome.error is not None:
        raise outcome.error
    if not outcome.missing:
        return Exit.DONE
    if stop.exit_code is not None:
        say(f"stopped: {outcome.missing:,} rows are left", hint="the same command goes on from there")
        return stop.exit_code
    share = f"{outcome.missing:,} of {outcome.summary['rows_total']:,} rows"
    if sink == _NULL:
        reason = f"the first is {outcome.reason}" if outcome.reason else "their outputs hold NaN"
        say(f"error: {share} failed; {reason}", hint="a sink that keeps rows keeps all reasons: see interlock status")
        return Exit.FAILED
    failures = read_status(sink).failures  # rows with NaN are found by the drain, and known only there
    reason = outcome.reason or (f"{failures[0].id}: {failures[0].reason}" if failures else "unknown")
    say(
        f"error: {share} are not in {sink}; the first is {reason}",
        hint=f"mend them and run the same command again; see also: interlock status {sink}",
    )
    return Exit.FAILED


def _check_apart(source: str, sink: str) -> None:
    """Refuse a sink inside the source: the next run would read its own output."""
    folder = Path(source)
    place = Path(sink.partition(":")[2])
    is_here = sink != _NULL and "://" not in sink
    if is_here and folder.is_dir() and place.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"sink {sink} lies in source {source}",
            why="the next run would read what this one wrote",
            hint="move it out",
        )


@final
class Head:
    """The first rows of a source.

    Args:
        source: All rows.
        count: At most so many.

    `id_of` and `read_into` are there if the source has them.
    """

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = min(count, len(source))
        for name in ("id_of", "read_into"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._source[index]


def table(summary: Mapping[str, Any], sink: str, explanation: Explanation) -> str:
    """Return the summary for people."""
    waits = ", ".join(f"{party} {seconds:.1f} s" for party, seconds in summary["waits"].items())
    rows = f"{summary['rows_committed']:,} of {summary['rows_total']:,} committed"
    parts = [
        f"{summary[f'rows_{what}']:,} {label}" for what, label in (("resumed", "from before"), ("failed", "failed"))
    ]
    parts += [f"{summary['rows_given_up']:,} given up"] if summary["rows_given_up"] else []
    return "\n".join(
        [
            f"rows     {rows} ({', '.join(parts)})",
            f"written  {summary['bytes_written']:,} bytes to {sink}",
            f"time     {summary['seconds']:,.1f} s, {summary['rows_per_second']:,.1f} rows/s",
            f"waited   {waits}",
            *([f"retried  {summary['retries']:,} calls of the model"] if summary["retries"] else []),
            *_writers(explanation),
        ]
    )


def _writers(explanation: Explanation) -> list[str]:
    """Return what the drain's writers did, and what limits it; nothing if nothing was put."""
    if explanation.findings.limit == "unknown":
        return []
    count = explanation.done.writers
    parts = listed(explanation.findings.writers)
    return [f"{'writer ' if count == 1 else 'writers'}  {parts}", "", *textwrap.wrap(explanation.verdict, _WIDTH)]
