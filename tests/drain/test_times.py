"""Where the time goes: each second of a producer and of a writer is counted once."""

from __future__ import annotations

import itertools
import resource
import threading

import numpy as np
import pytest

from interlock import Drain
from interlock.drain import _intake, _publish, _times
from interlock.drain._shardfile import ShardFile
from interlock.drain._times import WRITER_PHASES, Stopwatch, count_here


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def pass_(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock):
    return Stopwatch(WRITER_PHASES, clock)


def spent(watch):
    return {phase: seconds for phase, seconds in watch.seconds().items() if seconds}


def test_each_second_of_a_life_is_in_one_phase(clock, watch):
    clock.pass_(5)  # before its life
    watch.begin("idle")
    clock.pass_(1)
    with watch.on("encode"):
        clock.pass_(2)
        with watch.on("write"):
            clock.pass_(4)
        clock.pass_(8)
    clock.pass_(16)
    assert spent(watch) == {"idle": 17, "encode": 10, "write": 4}
    watch.end()
    clock.pass_(32)
    with watch.on("hash"):
        clock.pass_(64)
    assert spent(watch) == {"idle": 17, "encode": 10, "write": 4}


def test_the_phase_of_now_counts_up_to_now(clock, watch):
    watch.begin("idle")
    with watch.on("fsync"):
        clock.pass_(3)
        assert spent(watch) == {"fsync": 3}


def test_a_phase_that_ends_in_an_error_ends(clock, watch):
    watch.begin("idle")

    def fail():
        with watch.on("encode"):
            clock.pass_(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock.pass_(2)
    assert spent(watch) == {"encode": 1, "idle": 2}


def test_what_others_timed_is_taken_from_the_phase_of_now_and_no_more_than_that(clock, watch):
    watch.begin("idle")
    clock.pass_(1)
    with watch.on("encode"):
        clock.pass_(5)
        watch.move("write", 2)
        assert spent(watch) == {"idle": 1, "encode": 3, "write": 2}
        watch.move("write", 100)
    assert spent(watch) == {"idle": 1, "write": 5}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_of_phases_their_sum_is_the_life(clock, watch, seed):
    random = np.random.default_rng(seed)
    watch.begin("idle")

    def go(depth):
        for _ in range(4):
            clock.pass_(int(random.integers(1, 9)))
            if depth < 4 and random.random() < 0.7:
                with watch.on(str(random.choice(WRITER_PHASES))):
                    go(depth + 1)

    go(0)
    assert sum(watch.seconds().values()) == clock.now_s - 100


def test_writing_counts_as_such_on_the_thread_that_said_so_and_on_no_other(clock, watch, tmp_path):
    def work():
        count_here(watch)
        watch.begin("idle")
        with watch.on("encode"), ShardFile(tmp_path / "mine") as file:
            assert file.write(np.arange(3, dtype=np.int32)) == 12
            with _times.writing():
                clock.pass_(2)
            clock.pass_(1)
        watch.end()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with ShardFile(tmp_path / "other") as file, _times.writing():
        clock.pass_(7)
        file.write(b"x")
    assert spent(watch) == {"encode": 1, "write": 2}
    assert (tmp_path / "mine").read_bytes() == np.arange(3, dtype=np.int32).tobytes()


def test_a_file_that_takes_only_some_of_what_it_is_given_is_an_error(tmp_path):
    """The system then returns how much it took; pyarrow does not look at that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ShardFile(tmp_path / "file") as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
        try:
            with pytest.raises(OSError, match="large"):
                file.write(b"0123456789")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "file").read_bytes() == b"01234"


class Ticks:
    """A clock that goes on by a second whenever somebody looks at it."""

    def __init__(self):
        self._count = itertools.count()
        self.now_s = 0

    def __call__(self):
        self.now_s = next(self._count)
        return float(self.now_s)


def test_each_second_of_a_writer_is_in_one_field(every_sink, monkeypatch):
    ticks = Ticks()
    monkeypatch.setattr(_publish, "Stopwatch", lambda phases: Stopwatch(phases, ticks))
    with Drain(every_sink, nan="fail", shard_bytes=20_000, writers=1) as drain:
        while not drain.statistics().idle_s:
            pass  # its thread comes to where it waits for rows
        for start in range(0, 3_000, 100):
            drain.put(range(start, start + 100), np.zeros((100, 8)))
    told = drain.statistics()
    assert told.writers_s == ticks.now_s - 1, "the last look is that of `statistics`"
    assert min(told.encode_s, told.check_s, told.idle_s) > 0
    assert told.commit_s >= 3 * told.shards
    assert sum(told.of_writers.values()) == told.writers_s


def test_each_second_of_a_producer_is_in_one_field(sink, monkeypatch):
    ticks = Ticks()
    monkeypatch.setattr(_intake, "Stopwatch", lambda phases: Stopwatch(phases, ticks))
    with Drain(sink, budget_bytes=20_000) as drain:
        for start in range(0, 3_000, 100):
            drain.put(range(start, start + 100), np.zeros((100, 8)))
    told = drain.statistics()
    assert told.start_s + told.elapsed_s == ticks.now_s - 1
    assert told.loop_s + told.put_s + told.wait_slot_s + told.copy_s + told.flush_s == told.elapsed_s
    assert told.start_s == 1
    assert told.copy_s == 30
    assert told.flush_s > 0


@pytest.mark.parametrize("scheme", ["parquet", "arrow", "npy", "safetensors", "webdataset", "zarr", "delta"])
def test_the_calls_that_write_are_told_apart_from_the_format(scheme, tmp_path):
    with Drain(f"{scheme}:{tmp_path / 'out'}") as drain:
        drain.put(range(1_000), np.random.default_rng(0).normal(size=(1_000, 64)))
    told = drain.statistics()
    assert told.write_s > 0
    assert told.encode_s > 0


def test_a_drain_that_is_closed_counts_no_more(sink):
    with Drain(sink) as drain:
        drain.put([1], np.zeros(1))
    assert drain.statistics() == drain.statistics()
    assert drain.statistics().process_s > 0


def test_what_was_done_since_is_the_difference(sink):
    with Drain(sink) as drain:
        drain.put(range(5), np.zeros(5))
        drain.flush()
        before = drain.statistics()
        drain.put(range(5, 8), np.zeros(3))
        drain.flush()
    done = drain.statistics().since(before)
    assert (done.rows_put, done.rows_committed, done.bytes_put, done.shards) == (3, 3, 24, 1)
    assert (done.rows_resumed, done.writers, done.start_s) == (0, 1, 0.0)
    assert done.budget_bytes == before.budget_bytes
