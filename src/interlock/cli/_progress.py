"""Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, Self, TextIO, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from interlock.cli._waits import Party

_LINE_EVERY_S = 10.0
_BAR_EVERY_S = 0.1


class Display(Protocol):
    """Shows how far a run is."""

    def show(self, done: int, under_way: int, note: str) -> None:
        """Show committed rows, rows between model and disk, and a note."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


@final
class Progress:
    """Tells a display, not too often, how far the run is and what it waits for.

    Args:
        display: Where to; None for nowhere.
        every_s: Shortest time between two updates.
        clock: Seconds, only ever rising.
    """

    def __init__(self, display: Display | None, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._every_s = every_s
        self._clock = clock
        self._last_s = clock()
        self._seen: dict[Party, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.close()

    def due(self) -> bool:
        """Tell whether it is time for an update."""
        return self._display is not None and self._clock() - self._last_s >= self._every_s

    def update(self, done: int, under_way: int, waits: Mapping[Party, float], limit: str = "") -> None:
        """Show how far the run is.

        Args:
            done: Committed rows.
            under_way: Rows between model and disk.
            waits: Seconds waited so far, by party; the one that grew most since the last update is shown.
            limit: What limits the sink, in some words; shown if the sink is what is waited for.
        """
        if self._display is None:
            return
        grown = {party: seconds - self._seen.get(party, 0.0) for party, seconds in waits.items()}
        self._seen = dict(waits)
        self._last_s = self._clock()
        party = max(grown, key=lambda party: grown[party])
        self._display.show(done, under_way, limit if limit and party == "sink" else f"waiting for the {party}")


def open_progress(total: int, *, quiet: bool, stream: TextIO | None = None) -> Progress:
    """Return the progress that suits the stream.

    Args:
        total: Rows of the run, those of earlier runs included.
        quiet: Show nothing.
        stream: Default: stderr.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Progress(None, 0.0)
    if stream.isatty():
        return Progress(Bar(total, stream), _BAR_EVERY_S)
    return Progress(Lines(total, stream), _LINE_EVERY_S)


@final
class Pace:
    """How fast rows come, and how long the rest takes.

    Args:
        total: Rows of the run.
        clock: Seconds, only ever rising.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._began_s = clock()
        self._first: int | None = None

    def text(self, done: int, under_way: int) -> str:
        """Return rate and time left; rows under way count for the rate, not as done."""
        if self._first is None:
            self._first = done
        seconds = self._clock() - self._began_s
        rate = (done + under_way - self._first) / seconds if seconds > 0 else 0.0
        left = f", {duration((self._total - done) / rate)} left" if rate > 0 else ""
        return f"{rate:,.0f} rows/s{left}"


@final
class Lines:
    """A line for each update.

    Args:
        total: Rows of the run.
        stream: Where to.
        pace: Default: one that begins now.
    """

    def __init__(self, total: int, stream: TextIO, pace: Pace | None = None) -> None:
        self._total = total
        self._stream = stream
        self._pace = pace or Pace(total)

    def show(self, done: int, under_way: int, note: str) -> None:
        """As in `Display`."""
        pace = self._pace.text(done, under_way)
        self._stream.write(f"interlock: {done:,} of {self._total:,} rows committed, {pace}, {note}\n")
        self._stream.flush()

    def close(self) -> None:
        """As in `Display`."""


@final
class Bar:
    """A bar that stays on its line.

    Args:
        total: Rows of the run.
        stream: A terminal.
    """

    def __init__(self, total: int, stream: TextIO) -> None:
        from rich import progress  # noqa: PLC0415 - only for terminals
        from rich.console import Console  # noqa: PLC0415 - as above

        self._pace = Pace(total)
        self._progress = progress.Progress(
            progress.BarColumn(),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} committed"),
            progress.TextColumn("{task.description}"),
            console=Console(file=stream),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, done: int, under_way: int, note: str) -> None:
        """As in `Display`."""
        description = f"{self._pace.text(done, under_way)}, {note}"
        self._progress.update(self._task, completed=done, description=description)

    def close(self) -> None:
        """As in `Display`."""
        self._progress.stop()


def duration(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
