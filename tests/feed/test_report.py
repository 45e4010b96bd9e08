"""What a feed tells about itself while it runs."""

from __future__ import annotations

import gc
import json
import resource
import threading
import warnings
import weakref

import numpy as np
import pytest

from interlock import Feed
from interlock._reporting import append_line
from interlock.errors import UsageError
from interlock.feed import FeedStatistics, StageTimes
from interlock.feed._report import Meter, Record

KEYS = {
    "time_s",
    "seconds",
    "epoch",
    "batches",
    "samples",
    "failed",
    "samples_per_s",
    "mb_per_s",
    "wait",
    "busy",
    "slots",
    "slots_lent",
    "last",
}


def reporters():
    return [thread for thread in threading.enumerate() if thread.name == "interlock-report"]


def test_records_come_while_the_block_runs_and_once_at_its_end():
    feed = Feed(np.arange(100.0), batch_size=10)
    records: list[Record] = []
    several = threading.Event()

    def take(record):
        records.append(record)
        if len(records) >= 3:
            several.set()

    with feed.report(take, every_s=0.01):
        batches = list(feed)
        assert several.wait(60)
    assert len(batches) == 10
    assert [record.last for record in records] == [False] * (len(records) - 1) + [True]
    last = records[-1]
    assert (last.batches, last.samples, last.epoch, last.failed) == (10, 100, 0, 0)
    assert set(last.busy) == {"read", "copy"}
    assert [record.time_s for record in records] == sorted(record.time_s for record in records)
    assert reporters() == []


def test_a_block_that_is_short_has_one_record():
    feed = Feed(np.arange(10), batch_size=5)
    records: list[Record] = []
    with feed.report(records.append, every_s=3600.0):
        list(feed)
        list(feed)
    assert [(record.last, record.samples, record.epoch) for record in records] == [(True, 20, 1)]


def test_the_end_of_a_block_that_fails_is_told_too():
    feed = Feed(np.arange(10), batch_size=5)
    records: list[Record] = []

    def fail():
        with feed.report(records.append):
            next(iter(feed))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [record.samples for record in records] == [5]


def test_a_file_gets_a_line_of_json_for_each_record(tmp_path):
    path = tmp_path / "feed.jsonl"
    feed = Feed({"secret": np.arange(10)}, batch_size=5)
    for _ in range(2):
        with feed.report(path):
            list(feed)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["samples"] for line in lines] == [10, 20]
    assert all(set(line) == KEYS for line in lines)
    assert "secret" not in path.read_text(encoding="utf-8")


def test_a_line_for_which_there_is_no_room_is_not_there_at_all(tmp_path):
    """Else the next one would go on where it was cut."""
    path = tmp_path / "feed.jsonl"
    append_line(path, {"samples": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError, match="took 5 of 15 bytes"):
            append_line(path, {"samples": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append_line(path, {"samples": 3})
    assert path.read_text() == '{"samples": 1}\n{"samples": 3}\n'


def test_what_fails_in_a_report_is_said_once_and_ends_nothing():
    feed = Feed(np.arange(100), batch_size=10)
    calls = []
    thrice = threading.Event()

    def fail(record):
        calls.append(record)
        if len(calls) >= 3:
            thrice.set()
        raise OSError("the disk is full")

    def run():
        with feed.report(fail, every_s=0.01):
            assert thrice.wait(60)
            return list(feed)

    with pytest.warns(RuntimeWarning) as said:
        assert len(run()) == 10
    assert len(said) == 1
    assert "could not be told: OSError: the disk is full" in str(said[0].message)


def test_a_report_goes_on_where_warnings_are_errors():
    feed = Feed(np.arange(10), batch_size=5)
    calls = []

    def fail(record):
        calls.append(record.last)
        raise ValueError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with feed.report(fail, every_s=3600.0):
            list(feed)
    assert calls == [True]


def test_the_thread_keeps_no_feed_alive_and_ends_with_it():
    feed = Feed(np.arange(10), batch_size=5)
    report = feed.report(lambda _: None, every_s=3600.0)
    with report:
        (thread,) = reporters()
        seen = weakref.ref(feed)
        del feed
        gc.collect()
        assert seen() is None
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(("to", "every_s", "text"), [
    (3, 10.0, "to is of type int"),
    ("missing/feed.jsonl", 10.0, "cannot go to missing/feed.jsonl"),
    (".", 10.0, "cannot go to ."),
    ("feed.jsonl", 0.0, "every_s is 0.0"),
])  # fmt: skip
def test_a_report_that_cannot_be_meant(tmp_path, monkeypatch, to, every_s, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=text):
        Feed(np.arange(3), batch_size=2).report(to, every_s)


# ------------------------------------------------------------ what is in a record


def after(seconds, **more):
    """Return the record that comes so long after a begin with 100 samples."""
    clock = iter([0.0, seconds])
    read = StageTimes("read", "threads", 2, 100, busy_s=1.0)
    begin = FeedStatistics(batches=10, samples=100, nbytes=1000, wait_s=1.0, elapsed_s=2.0, stages=(read,))
    stages = (StageTimes("read", "threads", 2, 500, busy_s=1.0 + more.pop("busy_s", 0.0)),)
    end = FeedStatistics(**{"batches": 50, "samples": 500, "nbytes": 8_001_000, "stages": stages, **more})
    return Meter(begin, lambda: next(clock)).read(end, epoch=2)


def test_rates_are_those_since_the_record_before():
    record = after(4.0, wait_s=2.0, elapsed_s=6.0, busy_s=6.0, slots=3, slots_lent=1, failed=2)
    assert (record.samples_per_s, record.mb_per_s, record.wait, record.busy) == (100.0, 2.0, 0.25, {"read": 0.75})
    assert (record.seconds, record.batches, record.samples, record.slots, record.failed) == (4.0, 50, 500, 3, 2)
    assert record.line() == (
        "epoch 2, 500 samples, 100 samples/s, 2.0 MB/s, waited 25 ms of 100, busy: read 75 %, 2 failed"
    )


def test_a_time_without_a_batch_has_no_share_of_waiting():
    record = after(4.0, batches=10, samples=100, nbytes=1000, wait_s=1.0, elapsed_s=2.0)
    assert (record.samples_per_s, record.wait) == (0.0, None)
    assert "no batch came" in record.line()


def test_work_that_was_done_before_and_counted_now_is_no_more_than_all_of_the_time():
    assert after(1.0, wait_s=9.0, elapsed_s=6.0, busy_s=50.0).busy == {"read": 1.0}
