"""Which rows a picture has, in the order in which a batch passes through them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from interlock.errors import UsageError
from interlock.tracing._format import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from interlock.tracing._reading import Bar, Recording, Track

IDLE = frozenset({"wait", "wait for copy", "wait for room", "blocked"})
"""Spans in which nothing is done."""

_COPIES = {"copy in": 2, "copy": 4, "copy out": 5}
_MAIN, _WORKER, _MARKED, _WRITER = 0, 1, 3, 6
_CREW = "interlock-feed-"
_MOST_TALL_WORKERS = 2
_SHOWN_BATCHES = 6


@final
@dataclass(frozen=True, slots=True)
class Window:
    """A part of a recording.

    Attributes:
        start_ms: Where it begins.
        end_ms: Where it ends.

    Raises:
        UsageError: It ends before it begins, or nowhere.
    """

    start_ms: float
    end_ms: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.end_ms - self.start_ms) or self.end_ms < self.start_ms:
            raise UsageError(
                f"there is no part of a trace from {self.start_ms:g} to {self.end_ms:g} ms",
                hint="give milliseconds from the start of the trace, the beginning first",
            )

    @property
    def length_ms(self) -> float:
        """Its length."""
        return self.end_ms - self.start_ms

    def shows(self, bar: Bar) -> bool:
        """Tell whether some of `bar` is in it; of one that took no time, whether its moment is."""
        return self.overlap_ms(bar) > 0 or self.start_ms <= bar.start_ms == bar.end_ms <= self.end_ms

    def overlap_ms(self, bar: Bar) -> float:
        """Return how much of `bar` is in it."""
        return max(0.0, min(bar.end_ms, self.end_ms) - max(bar.start_ms, self.start_ms))


@final
@dataclass(frozen=True, slots=True)
class Lane:
    """A row.

    Attributes:
        title: What it does; empty where a row of the same crew says it.
        detail: On which device; empty for the host.
        note: What it comes to in the window; may be empty.
        bars: Those in the window.
        tall: Whether there is room for text.
        main: Whether it is what the program is for: the steps on a device.
        worker: Whether it is a worker's, one of a crew.
        crew: The stage that its crew does; empty for those who read, and for who is no worker.
    """

    title: str
    detail: str
    note: str
    bars: tuple[Bar, ...]
    tall: bool = True
    main: bool = False
    worker: bool = False
    crew: str = ""


def lanes_of(recording: Recording, window: Window) -> list[Lane]:
    """Return the rows that have something in `window`."""
    rows: list[tuple[tuple[int, float, str, str], Lane]] = []
    begins = _begins(recording)
    for track in recording.tracks:
        crew = _crew_of(track) or ""
        for rank, title, bars in _parts(track):
            shown = tuple(bar for bar in bars if window.shows(bar))
            if not shown:
                continue
            detail = "" if track.process == HOST else track.process
            note = _note(rank, shown, window)
            lane = Lane(title, detail, note, shown, main=rank == _MARKED, worker=rank == _WORKER, crew=crew)
            rows.append(((rank, begins.get(crew, 0.0), title, track.process), lane))
    return [lane for _, lane in sorted(rows, key=lambda row: row[0])]


def _begins(recording: Recording) -> dict[str, float]:
    """Return when each crew of a stage began: a batch comes to one after the other."""
    begins: dict[str, float] = {}
    for track in recording.tracks:
        crew = _crew_of(track)
        if crew and track.bars:
            begins[crew] = min(begins.get(crew, math.inf), track.bars[0].start_ms)
    return begins


def _crew_of(track: Track) -> str | None:
    """Return the stage that a worker does, empty for one that reads; None for who is no worker."""
    if track.process != HOST or not track.thread.startswith(_CREW):
        return None
    return track.thread.removeprefix(_CREW).rpartition("-")[0]


def with_crew(lanes: list[Lane]) -> list[Lane]:
    """Return the rows with those of many workers thin, and one title in the middle of each crew."""
    if sum(lane.worker for lane in lanes) <= _MOST_TALL_WORKERS:
        return lanes
    shown = list(lanes)
    for crew in {lane.crew for lane in lanes}:
        members = [index for index, lane in enumerate(lanes) if lane.worker and lane.crew == crew]
        for index in members:
            title = _crew_title(crew, len(members)) if index == members[len(members) // 2] else ""
            shown[index] = replace(lanes[index], title=title, note="", tall=False)
    return shown


def _crew_title(crew: str, count: int) -> str:
    if not crew:
        return f"{count} workers" if count > 1 else "worker"
    return f"{count} {crew}" if count > 1 else crew


def _parts(track: Track) -> Iterable[tuple[int, str, list[Bar]]]:
    """Return rank, title and spans of the rows that a track makes: a stream has one for copies each way."""
    if track.process == HOST:
        if track.thread.startswith(_CREW):
            crew, _, number = track.thread.removeprefix(_CREW).rpartition("-")
            yield _WORKER, f"{crew or 'worker'} {number}", track.bars
        elif track.thread.startswith("interlock-drain"):
            _, _, number = track.thread.removeprefix("interlock-drain").rpartition("-")
            yield _WRITER, f"writer {number}".rstrip(), track.bars
        else:
            yield _MAIN, "your loop" if track.thread == "MainThread" else track.thread, track.bars
        return
    for name, rank in _COPIES.items():
        copies = [bar for bar in track.bars if bar.name == name]
        if copies:
            yield rank, name, copies
    others = [bar for bar in track.bars if bar.name not in _COPIES]
    if others:
        names = [bar.name for bar in others]
        yield _MARKED, max(set(names), key=lambda name: (names.count(name), name)), others


def _note(rank: int, bars: Sequence[Bar], window: Window) -> str:
    if rank == _MAIN:
        return ""  # waiting inside a call looks like work
    busy_ms = _covered_ms([bar for bar in bars if bar.name not in IDLE], window)
    if rank in _COPIES.values() and busy_ms:
        timed = [bar for bar in bars if bar.end_ms > bar.start_ms]
        moved = sum(bar.size_bytes * window.overlap_ms(bar) / (bar.end_ms - bar.start_ms) for bar in timed)
        if moved:
            return f"{moved / busy_ms / 1e6:.0f} GB/s"
    return f"{busy_ms / window.length_ms:.0%} busy" if window.length_ms else ""


def _covered_ms(bars: list[Bar], window: Window) -> float:
    covered, until = 0.0, window.start_ms
    for bar in bars:  # by their beginning
        start, end = max(bar.start_ms, until), min(bar.end_ms, window.end_ms)
        if end > start:
            covered += end - start
            until = end
    return covered


def middle_of(recording: Recording) -> Window:
    """Return a part in the middle that shows some batches; all of a short recording.

    The steps decide: spans that the program marked on a device, else hand-overs, else whatever has a number.
    """
    bars = [(track, bar) for track in recording.tracks for bar in track.bars]
    marked = [bar for track, bar in bars if track.process != HOST and not bar.subject and bar.name not in _COPIES]
    handed = [bar for _, bar in bars if bar.name == "hand over"]
    steps = sorted(marked or handed or [bar for _, bar in bars], key=lambda bar: bar.start_ms)
    if len(steps) > _SHOWN_BATCHES + 1:
        first = (len(steps) - _SHOWN_BATCHES) // 2
        return Window(steps[first].start_ms, steps[first + _SHOWN_BATCHES].start_ms)
    return whole_of(recording)


def whole_of(recording: Recording) -> Window:
    """Return all of a recording.

    Raises:
        UsageError: There is nothing in it.
    """
    bars = [bar for track in recording.tracks for bar in track.bars]
    if not bars:
        raise UsageError("the trace is empty", why="no span was recorded", hint="trace a block that does work")
    return Window(min(bar.start_ms for bar in bars), max(bar.end_ms for bar in bars))
