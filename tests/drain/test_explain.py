"""What limits a drain: what is told from given numbers, and that a drain gives these numbers."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import Drain
from interlock.drain import DrainStatistics, _publish
from interlock.drain._attribution import Limit, Setting, find
from interlock.drain._explain import explain

SETTING = Setting("parquet", shard_bytes=64 << 20, processors=8)


def told(seconds=10.0, **more):
    """Return the statistics of a run in which one writer is busy: 100 puts of 64 rows and 10 MB in ten seconds.

    What is not named of the times of the producer is its own, of those of the writers idle.
    """
    more = {name: value * seconds if name.endswith("_s") else value for name, value in more.items()}
    numbers = {"puts": 100, "flushes": 1, "rows_put": 6_400, "bytes_put": 10**9, "bytes_written": 10**9, "shards": 15}
    numbers |= {"process_s": seconds, "budget_bytes": 1 << 30}
    bare = DrainStatistics(**{**numbers, **more})
    spare = bare.writers * seconds - (bare.writers_s - bare.idle_s)
    loop_s = seconds - bare.wait_slot_s - bare.copy_s - bare.put_s - bare.flush_s
    return replace(bare, elapsed_s=seconds, loop_s=loop_s, idle_s=spare)


CASES = {
    "producer": (
        told(wait_slot_s=0.01, copy_s=0.01, encode_s=0.15, write_s=0.02),
        SETTING,
        (
            "The drain keeps up: in 10.0 s it kept the producer for 2.0 ms of each 100. The producer is the limit: "
            "the writer waited 83 % of the time for rows. There is nothing to gain here. The writer spent: idle 83 %, "
            "encode 15 %, write 2 %."
        ),
    ),
    "producer, whose last rows are waited for": (
        told(flush_s=0.06, encode_s=0.1, fsync_s=0.04),
        SETTING,
        None,
    ),
    "producer, which puts many rows": (told(put_s=0.12, wait_slot_s=0.01, encode_s=0.1), SETTING, "little to gain"),
    "put": (told(put_s=0.5, host_syncs=7), SETTING, "a put of 64 rows takes 50 ms besides copying and waiting; the"),
    "copy": (told(copy_s=0.25, put_s=0.05), SETTING, "put copies 400.0 MB/s on the thread that calls it."),
    "device": (told(wait_slot_s=0.7, land_s=0.8, encode_s=0.15), SETTING, "waited 80 % of the time for values"),
    "budget": (
        told(wait_slot_s=0.4, encode_s=0.35, write_s=0.05, budget_bytes=15_000_000),
        SETTING,
        "The writer had nothing to do 60 % of the time, and put waited for room. It is 15.0 MB, and a put is 10.0 MB",
    ),
    "flush": (told(flush_s=0.6, flushes=100, fsync_s=0.5), SETTING, "100 flushes took 60 ms each"),
    "check": (
        told(wait_slot_s=0.6, check_s=0.7, encode_s=0.3),
        SETTING,
        "70 % of the writer's time: 1 writer, 3 would",
    ),
    "encoder": (
        told(wait_slot_s=0.3, encode_s=1.42, write_s=0.3, fsync_s=0.2, writers=2),
        SETTING,
        (
            "In 10.0 s the drain kept the producer for 30 ms of each 100: slot 100 %. The encoder is the limit, 71 % "
            "of the writers' time: 2 writers, 4 would do (writers=4; this machine has 8 processors)."
        ),
    ),
    "encoder, and then the storage": (
        told(wait_slot_s=0.9, encode_s=0.55, write_s=0.3, fsync_s=0.1),
        SETTING,
        "1 writer, 3 would be faster",
    ),
    "encoder, of a producer that does nothing": (told(wait_slot_s=1.0, encode_s=1.0), SETTING, "1 writer, 4 would be"),
    "processors": (
        told(wait_slot_s=0.5, encode_s=1.0, process_s=1.95),
        replace(SETTING, processors=2),
        "the writer computed 100 % of the time, and this machine has 2 processors, 1.9 in use. More writers do not",
    ),
    "processors, of which there is one": (
        told(wait_slot_s=0.5, encode_s=1.0, process_s=0.5),
        replace(SETTING, processors=1),
        "this machine has 1 processor. More writers do not help",
    ),
    "function": (
        told(wait_slot_s=0.9, encode_s=0.98),
        replace(SETTING, scheme="function", several=False),
        "The function that is the sink is the limit, 98 % of the writer's time: 98 ms for each put.",
    ),
    "interpreter": (
        told(wait_slot_s=0.9, encode_s=0.98),
        replace(SETTING, scheme="webdataset", in_python=True),
        "Shards of webdataset: are made row by row, by one thread at a time",
    ),
    "storage": (
        told(wait_slot_s=0.9, encode_s=0.05, write_s=0.35, fsync_s=0.57, bytes_written=4_100_000_000),
        SETTING,
        "The storage is the limit: 410.0 MB/s in write and fsync, 92 % of the writer's time.",
    ),
    "storage, before a shard is there": (
        told(wait_slot_s=0.9, write_s=0.98, bytes_written=0, shards=0),
        SETTING,
        "The storage is the limit: 100.0 MB/s in write and fsync",
    ),
    "storage, that the end waits for": (told(flush_s=0.9, encode_s=0.1, fsync_s=0.7), SETTING, "The storage is the"),
    "hash": (told(wait_slot_s=0.5, hash_s=0.6, encode_s=0.35), SETTING, "60 % of the writer's time: 1 writer, 3 would"),
    "commits": (
        told(wait_slot_s=0.5, fsync_s=0.3, commit_s=0.5, encode_s=0.2, shards=200, bytes_written=10**8),
        SETTING,
        "200 shards of 0.5 MB took 40 ms each to sync and record.",
    ),
    "commits, in which renames take longest": (told(wait_slot_s=0.9, commit_s=0.9, shards=2), SETTING, None),
    "unknown": (DrainStatistics(), SETTING, "0 rows were put so far: too few to tell what limits the drain."),
    "unknown, too short a time": (told(seconds=0.004, copy_s=0.5), SETTING, "6,400 rows were put so far"),
}
OF_ANOTHER_NAME = {"commits, in which renames take longest": "storage"}


@pytest.mark.parametrize("name", CASES)
def test_what_is_told(name):
    statistics, setting, said = CASES[name]
    explanation = explain(statistics, setting)
    assert explanation.findings.limit == OF_ANOTHER_NAME.get(name, name.partition(",")[0])
    assert said is None or said.lower() in str(explanation).lower()
    assert json.loads(json.dumps(explanation.as_dict()))["text"] == str(explanation)


def test_there_is_a_case_of_every_limit():
    assert {name.partition(",")[0] for name in CASES} == set(get_args(Limit))


def test_time_before_the_first_put_is_not_the_writers_idleness():
    statistics = told(wait_slot_s=0.9, encode_s=0.98)
    late = replace(statistics, start_s=100.0, idle_start_s=100.0, idle_s=statistics.idle_s + 100.0)
    assert dict(find(late, SETTING).writers) == pytest.approx(dict(find(statistics, SETTING).writers))
    assert find(late, SETTING).limit == "encoder"


PARTS = st.floats(0.0, 1.0)


@given(
    st.lists(PARTS, min_size=4, max_size=4), st.lists(PARTS, min_size=8, max_size=8), st.integers(1, 64), PARTS, PARTS
)
def test_parts_add_up_and_something_is_said_whatever_the_numbers(loop, writer, writers, start, cpu):
    times = dict(zip(("wait_slot_s", "copy_s", "put_s", "flush_s"), loop, strict=True))
    names = ("idle_s", "land_s", "check_s", "encode_s", "write_s", "hash_s", "fsync_s", "commit_s")
    times |= dict(zip(names, writer, strict=True))
    elapsed_s = sum(loop) + 0.25
    statistics = DrainStatistics(
        rows_put=9, elapsed_s=elapsed_s, loop_s=0.25, writers=writers, idle_start_s=start, process_s=cpu, **times
    )
    explanation = explain(statistics, SETTING)
    assert str(explanation)
    for parts in (explanation.findings.waits, explanation.findings.writers):
        assert not parts or sum(part for _, part in parts) == pytest.approx(1.0)
    wanted = explanation.findings.wanted
    assert wanted is None or writers < wanted <= 8


def test_more_writers_than_wanted_are_not_recommended_again():
    """With as many as recommended, a drain of that encoder and that producer keeps up."""
    statistics = told(wait_slot_s=0.5, encode_s=1.0, process_s=1.5)
    wanted = find(statistics, SETTING).wanted
    assert wanted == 3
    again = DrainStatistics(
        puts=100, rows_put=6_400, bytes_put=10**9, elapsed_s=5.0, loop_s=5.0, encode_s=10.0, idle_s=5.0, writers=wanted
    )
    assert find(again, SETTING).limit == "producer"


# ------------------------------------------------------------ real drains, whose times are held by events


def put_all(drain, puts=6):
    for start in range(puts):
        drain.put(range(10 * start, 10 * start + 10), np.zeros((10, 100)))


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def pass_(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of all stopwatches of drains that are made from now on."""
    clock = Clock()
    monkeypatch.setattr("interlock.drain._times.Stopwatch.__init__.__defaults__", (clock,))
    return clock


def test_a_slow_producer(clock, sink):
    with Drain(sink) as drain:
        for start in range(6):
            clock.pass_(1.0)
            drain.put(range(10 * start, 10 * start + 10), np.zeros((10, 100)))
        drain.flush()
    explanation = drain.explain()
    assert explanation.findings.limit == "producer"
    assert (explanation.start_s, explanation.elapsed_s, explanation.done.loop_s) == (1.0, 5.0, 5.0)


def test_a_slow_function(clock):
    began = threading.Event()

    def slow(*_):
        began.set()
        clock.pass_(1.0)

    with Drain(slow, budget_bytes=20_000) as drain:
        put_all(drain)
    explanation = drain.explain()
    assert began.is_set()
    assert explanation.done.encode_s == 6.0
    assert explanation.findings.limit == "function"


def test_a_slow_copy(clock, sink, monkeypatch):
    copyto = np.copyto

    def slow(target, source):
        clock.pass_(1.0)
        copyto(target, source)

    monkeypatch.setattr("interlock.drain._staging.np.copyto", slow)
    with Drain(sink) as drain:
        put_all(drain)
    assert drain.explain().done.copy_s == 6.0
    assert drain.explain().findings.limit == "copy"


@pytest.fixture
def slow_step(clock, monkeypatch):
    """Makes a step of the protocol take a second."""

    def slow(slow_name):
        def run_step(name, action):
            if name == slow_name:
                clock.pass_(1.0)
            action()

        monkeypatch.setattr(_publish, "run_step", run_step)

    return slow


def test_a_slow_encoder(slow_step, tmp_path):
    slow_step("write")
    with Drain(f"parquet:{tmp_path / 'out'}", budget_bytes=20_000) as drain:
        put_all(drain)
    found = drain.explain().findings
    assert found.limit in {"encoder", "processors"}, "a machine of one processor has no other"
    assert dict(found.writers)["encode"] == 1.0


def test_a_slow_disk(slow_step, sink):
    slow_step("sync")
    with Drain(sink) as drain:
        put_all(drain)
    assert drain.explain().findings.limit == "storage"


def test_small_shards(slow_step, sink):
    slow_step("record")
    with Drain(sink, commit_interval_s=3600.0) as drain:
        for start in range(3):
            drain.put([start], np.zeros(1))
            drain.flush()
        drain.put([3], np.zeros(1))
    assert drain.explain().findings.limit == "commits"


def test_what_was_done_before_does_not_count(sink):
    with Drain(sink) as drain:
        put_all(drain)
        drain.flush()
        assert drain.explain(since=drain.statistics()).findings.limit == "unknown"
        assert drain.explain().done.rows_put == 60
