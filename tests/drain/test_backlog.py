"""Who takes which job, and up to where all are done: without threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock._core._fence import Fence, HostTimeline
from interlock.drain._backlog import Backlog, Watermark
from interlock.drain._jobs import FailJob, FlushJob, Landing, Look, RowsJob


def rows(tick: int, size_bytes: int = 10, fence: Fence = Fence.EMPTY) -> RowsJob:
    return RowsJob(tick, np.array([tick]), Landing(fence), {}, [], 0, (), size_bytes=size_bytes)


@pytest.fixture
def backlog():
    """Of three lanes, of which each waits for orders; shards of 100 bytes."""
    made = Backlog(HostTimeline("written"), HostTimeline("committed"))
    made.shard_bytes, made.limit = 100, 3
    for door in [made.add_door() for _ in range(3)]:
        assert made.take(door) is None
        assert door.idle
    return made


def woken(backlog: Backlog) -> list[int]:
    """Return which lanes were told to look, and forget that they were."""
    return [door.number for door in backlog.doors if list(iter(door.orders.take_nowait, None))]


# ---------------------------------------------------------------- watermarks


def test_a_watermark_stands_before_the_first_job_that_has_not_ended():
    timeline = HostTimeline("committed")
    mark = Watermark(timeline)
    for tick in (1, 2, 3, 4):
        mark.begin(tick)
    mark.end([2, 4])
    assert not timeline.reached(1)
    mark.end([1])
    assert timeline.reached(2)
    assert not timeline.reached(3)
    mark.end([3])
    assert timeline.reached(4)


def test_a_tick_that_never_became_a_job_holds_nothing_back():
    """As when an interrupt comes between the two."""
    timeline = HostTimeline("committed")
    mark = Watermark(timeline)
    mark.begin(1)
    mark.begin(5)
    mark.end([1])
    assert timeline.reached(1)
    assert not timeline.reached(2)
    mark.end([5])
    assert timeline.reached(5)


def test_a_job_that_nobody_has_taken_is_behind_the_watermark(backlog):
    written = HostTimeline("written")
    backlog.written = Watermark(written)
    backlog.post(rows(1))
    backlog.post(rows(2))
    job = backlog.take(backlog.doors[0])
    backlog.written.end([job.tick])
    assert written.reached(1)
    assert not written.reached(2)


# ---------------------------------------------------------------- who takes what


def test_jobs_are_taken_in_the_order_of_puts(backlog):
    for tick in range(1, 30):
        backlog.post(rows(tick))
    taken = [backlog.take(backlog.doors[tick % 2]).tick for tick in range(10)]
    assert taken == list(range(1, 11))


def test_the_first_lane_is_woken_and_no_other(backlog):
    backlog.post(rows(1))
    assert woken(backlog) == [0]


def test_a_second_lane_is_left_alone_while_less_than_a_shard_waits(backlog):
    first, second, _ = backlog.doors
    backlog.post(rows(1))
    assert backlog.take(first) is not None
    for tick in range(2, 11):
        backlog.post(rows(tick))
        assert backlog.take(second) is None
    woken(backlog)
    backlog.post(rows(11))
    assert woken(backlog) == [1]
    assert backlog.take(second).tick == 2


def test_a_lane_with_an_open_shard_takes_what_comes_while_those_before_are_busy(backlog):
    first, second, _ = backlog.doors
    second.has_open = True
    backlog.post(rows(1))
    assert backlog.take(first).tick == 1
    woken(backlog)
    backlog.post(rows(2))
    assert woken(backlog) == [1]
    assert backlog.take(second).tick == 2


def test_while_put_waits_any_lane_takes_what_there_is(backlog):
    first, second, third = backlog.doors
    for tick in (1, 2, 3):
        backlog.post(rows(tick))
    assert backlog.take(first).tick == 1
    assert backlog.take(second) is None
    woken(backlog)
    with backlog.put_waits():
        assert woken(backlog) == [1]
        assert backlog.take(second).tick == 2
        assert woken(backlog) == [2]
        assert backlog.take(third).tick == 3
    second.has_open = False
    backlog.post(rows(4))
    assert backlog.take(second) is None


def test_a_lane_above_the_limit_begins_no_shard(backlog):
    backlog.limit = 2
    for tick in range(1, 40):
        backlog.post(rows(tick))
    with backlog.put_waits():
        assert backlog.take(backlog.doors[2]) is None
        assert backlog.take(backlog.doors[1]) is not None


def test_a_lane_that_takes_a_job_wakes_the_next_if_there_is_more(backlog):
    for tick in range(1, 40):
        backlog.post(rows(tick))
    woken(backlog)
    backlog.take(backlog.doors[0])
    assert woken(backlog) == [1]


def test_a_flush_is_for_all_lanes_and_comes_behind_everything_before_it(backlog):
    first, second, third = backlog.doors
    committed = HostTimeline("committed")
    backlog.committed = Watermark(committed)
    backlog.post(rows(1))
    backlog.post(FlushJob(2))
    backlog.post(rows(3))
    assert backlog.take(first).tick == 1
    woken(backlog)
    assert backlog.take(second) == FlushJob(2)
    assert first.orders.take_nowait() == FlushJob(2)
    assert [third.orders.take_nowait(), third.orders.take_nowait()] == [FlushJob(2), None]
    assert not committed.reached(1)
    backlog.committed.end([1])
    assert committed.reached(2)
    assert not committed.reached(3)


def test_failures_are_taken_by_whoever_is_free(backlog):
    first, second, _ = backlog.doors
    backlog.post(rows(1))
    backlog.take(first)
    backlog.post(FailJob(2, np.array([7]), "no luck"))
    assert backlog.take(second).tick == 2


def test_a_job_survives_an_interrupt_of_the_put_that_posted_it(backlog, monkeypatch):
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Backlog, "_wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        backlog.post(rows(1))
    monkeypatch.undo()
    backlog.post(FlushJob(2))
    assert backlog.doors[0].orders.take_nowait() == Look()
    assert backlog.take(backlog.doors[0]).tick == 1


def test_lanes_hold_up_a_put_that_waits_while_rows_that_have_landed_do(backlog):
    copies = HostTimeline("copies")
    tick = copies.next_tick()
    with backlog.put_waits():
        assert not backlog.holds_up_put()
        backlog.post(rows(1, fence=Fence([(copies, tick)])))
        assert not backlog.holds_up_put()
        copies.reach(tick)
        assert backlog.holds_up_put()
    assert not backlog.holds_up_put()
    with backlog.put_waits():
        backlog.take(backlog.doors[0])
        assert not backlog.holds_up_put()
