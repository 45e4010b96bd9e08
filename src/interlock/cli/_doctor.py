"""`interlock doctor`."""

from __future__ import annotations

import click


@click.command()
@click.option("--sink", metavar="FOLDER", help="Measure the storage of this folder too: writes 256 MB, keeps nothing.")
@click.option("--quick", is_flag=True, help="Measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, sink: str | None, quick: bool, as_json: bool) -> int:
    """Tell what limits a feed and a drain on this machine, and what is wrong with it.

    Looks at packages, the CUDA driver, its devices, what torch, JAX and CuPy see, and the host's limits; measures the
    link, the host's copies, and on request a storage. Takes some seconds, 20 at most, up to 1 GiB of memory, and half
    as much of a device's. Works without a GPU.

    Exit codes: 0 all that is installed works, 1 something that is installed is broken, 2 wrong usage.
    """
    from interlock.cli._doctoring import run  # noqa: PLC0415 - rich is slow to load

    return run(sink=sink, quick=quick, as_json=as_json)
