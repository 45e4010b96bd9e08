"""Values of options that several commands take."""

from __future__ import annotations

import os
import re

import click

_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def size(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Read `H,W`."""
    if value is None:
        return None
    height, comma, width = (part.strip() for part in value.partition(","))
    if not (comma and height.isdecimal() and width.isdecimal()):
        raise click.BadParameter(f"{value!r} is not HEIGHT,WIDTH in pixels, as 224,224", context, parameter)
    return int(height), int(width)


def names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read `A,B,C`."""
    if value is None:
        return None
    found = tuple(name.strip() for name in value.split(","))
    if not all(found):
        raise click.BadParameter(f"{value!r} names a column without letters", context, parameter)
    return found


def rank(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int]:
    """Read `R/N`; without it what torchrun says in the environment of its processes, else 0/1."""
    said = [os.environ.get(name, "") for name in _OF_TORCHRUN]
    text = value if value is not None else "/".join(said[:2]) if all(said) else "0/1"
    found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise click.BadParameter(f"{text!r} is no rank of several, as 0/4 to 3/4", context, parameter)
    return int(found[1]), int(found[2])


def workers(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """Read a number of threads, or what else `Feed` takes, which knows what it means."""
    del context, parameter
    return int(value) if value is not None and value.isdecimal() else value


positive = click.IntRange(min=1)

batch_depth = click.option("--depth", type=positive, default=2, show_default=True, help="Batches made ahead.")
columns = click.option(
    "--columns",
    metavar="A,B,…",
    callback=names,
    help="Columns, or extensions in shards, that make a sample. [default: all of numbers]",
)
image_size = click.option(
    "--image-size", metavar="H,W", callback=size, help="Resize images; needed if their sizes differ."
)
quiet = click.option("--quiet", is_flag=True, help="No progress on stderr.")
