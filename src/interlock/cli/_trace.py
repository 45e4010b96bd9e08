"""`interlock trace FILE…`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from interlock.cli._exits import Exit
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock.tracing import Recording


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--svg", metavar="FILE", help="Draw a picture; several traces go below each other on one scale of time.")
@click.option("--title", "titles", multiple=True, metavar="TEXT", help="Title of each trace in the picture, in order.")
@click.option("--from", "start_ms", type=float, metavar="MS", help="Where the part that is shown begins.")
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
    recordings = [read(file) for file in files]
    if svg is None:
        click.echo("\n\n".join(table(file, recording) for file, recording in zip(files, recordings, strict=True)))
        return Exit.DONE
    stems = [Path(file).stem if len(files) > 1 else "" for file in files]
    shown = [*titles, *stems[len(titles) :]]
    panels = [Panel(title, recording) for title, recording in zip(shown, recordings, strict=True)]
    draw(panels, svg, start_ms=start_ms, end_ms=end_ms)
    return Exit.DONE


def table(file: str, recording: Recording) -> str:
    """Return what each row did over the whole recording, for people."""
    from interlock.tracing import lanes_of, whole_of  # noqa: PLC0415 - as above

    window = whole_of(recording)
    lanes = lanes_of(recording, window)
    width = max(len(lane.title) for lane in lanes)
    lines = [f"{file}: {window.length_ms:,.1f} ms"]
    lines += [
        f"{lane.title:<{width}}  {len(lane.bars):>8,} spans  {lane.note:>10}  {lane.detail}".rstrip() for lane in lanes
    ]
    if recording.dropped:
        lines.append(f"{recording.dropped:,} spans were left out")
    return "\n".join(lines)
