"""What is shown while a run is under way, and for whom it says that it waits."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from interlock.cli._progress import Bar, Lines, Pace, Progress, duration, open_progress
from interlock.cli._waits import Limits, Waits
from interlock.drain import Drain, DrainStatistics


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Recorder:
    def __init__(self):
        self.shown: list[Any] = []
        self.closed = False

    def show(self, done, under_way, note):
        self.shown.append((done, under_way, note))

    def close(self):
        self.closed = True


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_party_whose_wait_grew_most_since_the_last_update_is_named():
    display = Recorder()
    progress = Progress(display, 1.0, Clock())
    progress.update(0, 5, {"source": 9.0, "model": 1.0, "sink": 0.0})
    progress.update(5, 0, {"source": 9.1, "model": 1.5, "sink": 0.2})
    progress.update(9, 0, {"source": 9.1, "model": 1.5, "sink": 0.9})
    assert [note for _, _, note in display.shown] == [
        "waiting for the source",
        "waiting for the model",
        "waiting for the sink",
    ]


def test_what_limits_the_sink_is_said_where_the_sink_is_waited_for():
    display = Recorder()
    progress = Progress(display, 1.0, Clock())
    progress.update(0, 5, {"source": 0.0, "model": 1.0, "sink": 0.0}, "encoder 71 %, 2 writers")
    progress.update(0, 5, {"source": 0.0, "model": 1.0, "sink": 1.0}, "encoder 71 %, 2 writers")
    progress.update(0, 5, {"source": 0.0, "model": 1.0, "sink": 2.0}, "")
    assert [note for _, _, note in display.shown] == [
        "waiting for the model",
        "encoder 71 %, 2 writers",
        "waiting for the sink",
    ]


def test_what_limits_a_sink_is_told_of_some_seconds_and_not_of_every_moment():
    clock = Clock()
    busy = DrainStatistics(rows_put=1, elapsed_s=1.0, wait_slot_s=0.9, encode_s=0.9, fsync_s=0.1)
    idle = replace(busy, elapsed_s=9.0, loop_s=8.0, idle_s=8.0, rows_put=2)
    with Drain("null:") as drain:
        limits = Limits(drain, clock)
        assert limits.text(busy) == ""
        clock.now_s = 2.0
        assert limits.text(busy) == "encoder 90 %, 1 writer"
        clock.now_s = 3.9
        assert limits.text(idle) == "encoder 90 %, 1 writer"
        clock.now_s = 4.0
        assert limits.text(idle) == "", "then the producer is the limit"


def test_updates_are_due_no_more_often_than_asked():
    clock = Clock()
    progress = Progress(Recorder(), 10.0, clock)
    assert not progress.due()
    clock.now_s = 10.0
    assert progress.due()
    progress.update(1, 0, {"source": 1.0, "model": 0.0, "sink": 0.0})
    assert not progress.due()


def test_a_line_tells_rows_rate_time_left_and_what_is_waited_for():
    clock, stream = Clock(), io.StringIO()
    lines = Lines(10_000, stream, Pace(10_000, clock))
    lines.show(1_000, 0, "waiting for the sink")
    clock.now_s = 10.0
    lines.show(2_000, 500, "waiting for the sink")
    assert stream.getvalue().splitlines()[1] == (
        "interlock: 2,000 of 10,000 rows committed, 150 rows/s, 0:53 left, waiting for the sink"
    )


def test_quiet_shows_nothing_and_is_never_due():
    stream = Terminal()
    with open_progress(10, quiet=True, stream=stream) as progress:
        assert not progress.due()
        progress.update(1, 0, {"source": 1.0, "model": 0.0, "sink": 0.0})
    assert stream.getvalue() == ""


def test_a_bar_of_a_million_rows_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, clock = Terminal(), Clock()
    with closing(Bar(1_000_000, terminal)) as bar:
        bar._pace = Pace(1_000_000, clock)
        clock.now_s = 0.01
        bar.show(123_456, 8_192, "encoder 71 %, 2 writers")
        bar._progress.refresh()
        *_, line = terminal.getvalue().split("\r")
    assert "123,456/1,000,000 committed" in line
    assert "encoder 71 %, 2 writers" in line


def test_a_terminal_gets_a_bar_and_another_stream_lines():
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with open_progress(10, quiet=False, stream=stream) as progress:
            progress.update(4, 2, {"source": 0.0, "model": 1.0, "sink": 0.0})
    assert "4/10 committed" in terminal.getvalue()
    assert "\x1b" in terminal.getvalue()
    assert pipe.getvalue().startswith("interlock: 4 of 10 rows committed")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_durations_are_clock_times(seconds, text):
    assert duration(seconds) == text


def test_waiting_for_outputs_to_land_is_waiting_for_the_model():
    clock = Clock()
    waits = Waits(clock)
    for party, seconds in (("source", 1.0), ("model", 2.0), ("sink", 4.0)):
        with waits.on(party):  # type: ignore[arg-type] # the three literals
            clock.now_s += seconds
    drained = DrainStatistics(idle_s=7.0, land_s=3.0, encode_s=0.5, hash_s=0.25, fsync_s=0.25)
    assert waits.seconds(drained) == {"source": 1.0, "model": 5.0, "sink": 1.0}
    idle = DrainStatistics()
    assert waits.seconds(idle) == {"source": 1.0, "model": 2.0, "sink": 4.0}


def test_time_counts_also_when_the_wait_ends_in_an_error():
    clock = Clock()
    waits = Waits(clock)

    def work():
        with waits.on("model"):
            clock.now_s += 3.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    idle = DrainStatistics()
    assert waits.seconds(idle)["model"] == 3.0
