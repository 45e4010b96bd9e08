"""`workers=...`: what it may be, and what `auto` makes of what it measures."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from interlock import Feed
from interlock.errors import UsageError
from interlock.feed import _auto
from interlock.feed._auto import CHEAP_S, SCALES, SMALL_BATCH_S, Measured, choose, choose_bulk, measure
from interlock.feed._workers import Workers, workers_of

sys.path.append(str(Path(__file__).parent))  # processes get the path too
sources = importlib.import_module("process_sources")


@pytest.mark.parametrize(
    ("value", "kind", "count"),
    [
        (3, "threads", 3),
        ("threads:3", "threads", 3),
        ("processes:12", "processes", 12),
        ("auto:2", "auto", 2),
        (0, "inline", 0),
        ("inline", "inline", 0),
    ],
)
def test_workers_may_be_a_number_or_a_word_with_one(value, kind, count):
    assert workers_of(value) == Workers(kind, count)


@pytest.mark.parametrize("value", [None, "threads", "processes", "auto"])
def test_without_a_number_there_is_a_worker_per_processor(value):
    assert workers_of(value).kind == (value or "threads")
    assert 1 <= workers_of(value).count <= 8


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "workers is -1"),
        ("processes:0", "'processes:0'; give at least 1, as in 'processes:1', or 'inline'"),
        ("threads:", "'threads:', and '' is no number"),
        ("auto:x", "'auto:x', and 'x' is no number; give one, as in 'auto:4'"),
        ("processes:-1", "'-1' is no number"),
        ("processes:\u0663", "is no number"),
        ("thread", "workers is 'thread'; use a number of threads"),
        ("inline:2", "workers is 'inline:2'"),
        ("", "workers is ''"),
        (True, "workers is True"),
        (2.0, "workers is 2.0"),
    ],
)
def test_what_workers_cannot_be_is_said_with_what_they_can(value, said):
    with pytest.raises(UsageError) as found:
        workers_of(value)
    assert said in str(found.value)


# ---------------------------------------------------------------- the choice


def times(sample_s, speedup):
    """Return what 10 samples take in three rounds, of which the first and the last were disturbed."""
    alone, together = sample_s * 10, 2 * sample_s * 10 / speedup
    return Measured(10, (9 * alone, alone, 2 * alone), (2 * together, together, 7 * together))


def choice(sample_s=0.01, speedup=1.0, count=4, batch_size=64, available=8.0, unsendable=""):
    return choose(times(sample_s, speedup), count, batch_size, available, lambda: unsendable)


@pytest.mark.parametrize(
    ("measured", "kind", "why"),
    [
        (choice(), "processes:4", "a sample takes 10 ms, and two threads are 1.00 times as fast as one"),
        (choice(speedup=0.6), "processes:4", "0.60 times as fast as one, so threads wait for each other"),
        (choice(speedup=1.99), "threads:4", "two threads are 1.99 times as fast as one"),
        (choice(speedup=SCALES + 0.01), "threads:4", "times as fast"),
        (choice(speedup=SCALES - 0.01), "processes:4", "times as fast"),
        (choice(sample_s=CHEAP_S * 0.9), "threads:4", "a sample takes 180 us, too little to be worth a process"),
        (choice(sample_s=CHEAP_S * 1.1), "processes:4", "220 us"),
        (choice(sample_s=SMALL_BATCH_S / 65), "inline", "a batch is made in 197 us, sooner than it is handed"),
        (choice(sample_s=SMALL_BATCH_S / 63), "threads:4", "too little"),
        (choice(available=1.0), "threads:4", "1 processors have no time for a second process"),
        (choice(count=1), "threads:1", "one worker was asked for"),
        (choice(unsendable="it is a lambda"), "threads:4", "processes would be faster, but it is a lambda"),
    ],
)
def test_the_choice_follows_from_what_was_measured(measured, kind, why):
    assert str(measured.workers) == kind
    assert why in measured.why


def test_what_could_not_be_measured_is_read_by_threads():
    assert choose(Measured(1, (), (), "no luck"), 4, 8, 8.0, lambda: "").why == "no luck"


@pytest.mark.parametrize(("batch_s", "kind"), [(SMALL_BATCH_S / 2, "inline"), (SMALL_BATCH_S * 2, "threads:4")])
def test_a_source_that_writes_whole_batches_needs_no_process(batch_s, kind):
    assert str(choose_bulk(batch_s, 4).workers) == kind


# ---------------------------------------------------------------- the measurement


def test_threads_that_wait_for_something_else_are_seen_to_run_side_by_side():
    found = measure(lambda _: time.sleep(0.003), 8)
    assert found.speedup > 1.5
    assert 0.003 <= found.sample_s < 0.01


def test_threads_that_hold_a_lock_are_seen_to_wait_for_each_other():
    lock = threading.Lock()

    def make(_):
        with lock:
            time.sleep(0.003)

    assert measure(make, 8).speedup < SCALES


def test_time_in_line_for_a_processor_does_not_count(monkeypatch):
    monkeypatch.setattr(_auto, "_delayed_s", lambda: time.perf_counter() / 2)
    assert 0.001 < measure(lambda _: time.sleep(0.004), 8).sample_s < 0.004


def test_a_sample_that_cannot_be_made_ends_the_measurement():
    def make(position):
        raise StopIteration if position else ValueError

    found = measure(make, 3)
    assert found.failure == "its first samples could not be measured (ValueError)"
    assert measure(make, 0).failure == "there is no sample to measure"


def test_a_slow_sample_is_made_no_more_often_than_needed(monkeypatch):
    monkeypatch.setattr(_auto, "_BUDGET_S", 0.0)
    made = []

    def make(position):
        made.append(position)
        time.sleep(0.05)

    measure(make, 100)
    assert len(made) == 2 + 1 + 2


# ---------------------------------------------------------------- the feed


def summed(info):
    """Hold the interpreter."""
    return np.int64(info.idx_in_epoch + 0 * sum(range(30_000)))


@pytest.mark.parametrize("source", [np.arange(12), [*range(12)], lambda info: summed(info)])  # noqa: PLW0108 - no name
def test_auto_gives_the_same_batches_and_says_what_it_chose(source):
    def first(workers):
        with Feed(source, batch_size=4, workers=workers) as feed:
            batches = iter(feed)
            return [next(batches).tolist() for _ in range(3)], feed.workers_choice, repr(feed), str(feed.explain())

    batches, why, shown, explained = first("auto:2")
    assert batches == first(0)[0]
    assert why.partition(":")[0] in {"inline", "threads"}
    assert shown.endswith(", by auto)")
    assert f"workers='auto' chose {why}" in explained


def test_auto_chooses_processes_where_threads_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(_auto, "measure", lambda *_: times(0.01, 1.0))
    monkeypatch.setattr(_auto, "processors", lambda: 2.0)
    with Feed(sources.Picky(), batch_size=8, workers="auto:2", shuffle=True) as feed:
        batches = [batch["pair"].y.tolist() for batch in feed]
        assert feed.workers_choice.startswith("processes:2: a sample takes 10 ms, and two threads are 1.00 times")
        assert {stage.kind for stage in feed.statistics().stages} == {"processes"}
    inline = Feed(sources.Picky(), batch_size=8, workers=0, shuffle=True)
    assert batches == [batch["pair"].y.tolist() for batch in inline]


def test_auto_is_said_to_be_undecided_before_the_first_iteration():
    feed = Feed(np.arange(4), batch_size=2, workers="auto:3")
    assert repr(feed) == "Feed(ArraySource, batch_size=2, to='numpy', workers='auto:3')"
    assert feed.workers_choice == ""


def test_auto_reads_an_iterable_with_one_thread():
    feed = Feed(iter([1, 2, 3]), batch_size=2, workers="auto")
    assert [batch.tolist() for batch in feed] == [[1, 2], [3]]
    assert "one thread only" in feed.workers_choice


class Private:
    """Samples that no two threads may ask for at the same time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.clashes = 0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        alone = self.lock.acquire(blocking=False)
        self.clashes += not alone
        found = np.int64(index + 0 * sum(range(30_000)))
        if alone:
            self.lock.release()
        return found


def test_auto_with_one_worker_never_asks_on_two_threads():
    source = Private()
    feed = Feed(source, batch_size=8, workers="auto:1")
    assert [batch.tolist() for batch in feed] == [list(range(8)), list(range(8, 16))]
    assert source.clashes == 0
    assert feed.workers_choice.startswith("threads:1: one worker was asked for")


def test_auto_measures_nothing_in_a_worker_that_is_being_started(monkeypatch):
    monkeypatch.setattr(multiprocessing.process.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match="begun by a worker process that is itself being started"):
        iter(Feed(np.arange(4), batch_size=2, workers="auto"))
