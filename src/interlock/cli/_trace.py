"""`interlock trace FILE…`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from interlock.cli._exits import Exit
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock.tracing import Recording

_LONGEST_NAME = 32
"""So that a line fits 80 columns."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--svg", metavar="FILE", help="Draw a picture; several traces go below each other on one scale of time.")
@click.option("--title", "titles", multiple=True, metavar="TEXT", help="Title of each trace in the picture, in order.")
@click.option("--from", "start_ms", type=float, metavar="MS", help="Where the part that is told or drawn begins.")
@click.option("--to", "end_ms", type=float, metavar="MS", help="Where it ends.")
def trace(
    files: tuple[str, ...], svg: str | None, titles: tuple[str, ...], start_ms: float | None, end_ms: float | None
) -> int:
    """Tell what the rows of traces made with interlock.trace did, or draw them.

    https://ui.perfetto.dev shows the same files with everything in them; nothing is sent anywhere.

    Exit codes: 0 done, 2 a file is no trace.
    """
    from interlock.tracing import Panel, draw, read  # noqa: PLC0415 - only this command draws

    if len(titles) > len(files):
        raise UsageError(f"{len(titles)} titles for {len(files)} traces", hint="give at most one for each")
    if titles and svg is None:
        raise UsageError("a title is for a picture", hint="give --svg FILE too, or leave --title out")
    recordings = [read(file) for file in files]
    if svg is None:
        tables = [table(file, one, start_ms, end_ms) for file, one in zip(files, recordings, strict=True)]
        click.echo("\n\n".join(tables))
        return Exit.DONE
    stems = [Path(file).stem if len(files) > 1 else "" for file in files]
    shown = [*titles, *stems[len(titles) :]]
    panels = [Panel(title, recording) for title, recording in zip(shown, recordings, strict=True)]
    draw(panels, svg, start_ms=start_ms, end_ms=end_ms)
    return Exit.DONE


def table(file: str, recording: Recording, start_ms: float | None = None, end_ms: float | None = None) -> str:
    """Return what each row did, for people.

    Args:
        file: Shown above.
        recording: From `read`.
        start_ms: Where the part that counts begins. Default: where the recording does.
        end_ms: Where it ends.

    Raises:
        UsageError: There is nothing in that part.
    """
    from interlock.tracing import Window, lanes_of, whole_of  # noqa: PLC0415 - as above

    whole = whole_of(recording)
    start_ms = whole.start_ms if start_ms is None else start_ms
    end_ms = max(whole.end_ms, start_ms) if end_ms is None else end_ms
    window = Window(start_ms, end_ms)
    lanes = lanes_of(recording, window)
    if not lanes:
        raise UsageError(
            f"no span of {file} lies between {start_ms:g} and {end_ms:g} ms",
            why=f"it goes from {whole.start_ms:g} to {whole.end_ms:g} ms",
            hint="choose other times",
        )
    titles = [_cut(lane.title) for lane in lanes]
    width = max(map(len, titles))
    lines = [f"{file}: {window.length_ms:,.1f} ms"]
    lines += [
        f"{title:<{width}}  {len(lane.bars):>8,} spans  {lane.note:>10}  {_cut(lane.detail)}".rstrip()
        for title, lane in zip(titles, lanes, strict=True)
    ]
    if recording.dropped:
        lines.append(f"{recording.dropped:,} spans were left out")
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
