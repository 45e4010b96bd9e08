"""`interlock bench feed SOURCE`."""

from __future__ import annotations

from typing import Any

import click

from interlock.cli._options import batch_depth, columns, image_size, positive, quiet, workers


@click.group()
def bench() -> None:
    """Measure without a model."""


@bench.command()
@click.argument("source")
@click.option("--batch-size", type=positive, default=64, show_default=True, help="Samples of a batch.")
@click.option(
    "--workers",
    metavar="N|KIND|KIND:N",
    callback=workers,
    help="Who reads: N threads, or threads, processes, auto, with :N. [default: threads, one per processor, at most 8]",
)
@batch_depth
@click.option(
    "--to", type=click.Choice(["numpy", "torch", "jax", "cupy"]), default="numpy", show_default=True, help="Arrays."
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where batches go: auto (where the framework puts arrays), host, cuda, cuda:N, simulated:SCHEDULE.",
)
@click.option("--shuffle", is_flag=True, help="Read in random order, as in training.")
@columns
@image_size
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="How long."
)
@click.option("--batches", type=positive, help="So many batches in place of --seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quiet
def feed(source: str, **options: Any) -> int:
    """Tell how fast batches come from SOURCE, what sets the pace, and which step they could keep up with.

    SOURCE is what `interlock predict` takes: a .npy file, a folder of images, Parquet, arrow:FILE, WebDataset shards,
    the url of one of these, or file.py:NAME. It is read again from its beginning when it ends.
    The first batches are not measured.

    Exit codes: 0 measured, 2 a mistake in the command, 3 no sample can be read, 130 or 143 interrupted.
    """
    from interlock.cli._benching import run  # noqa: PLC0415 - rich is slow to load

    return run(source, options)
