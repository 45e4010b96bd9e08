"""More than one writer: what holds with one holds with several, and they do work at the same time."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest

from interlock.drain import Drain, _growth, _publish, _writer, verify_sink
from interlock.drain._lane import Lane
from interlock.drain._sinks._npy import NpySink
from interlock.drain._sinks._parquet import ParquetSink
from interlock.errors import BoundError, SinkError, UsageError

SHARD: dict[str, Any] = {"shard_bytes": 64, "commit_interval_s": 3600.0}
"""Eight rows of eight bytes beside their ids: four to a shard."""


def put(drain: Drain, first: int, rows: int = 4):
    return drain.put(np.arange(first, first + rows), np.arange(first, first + rows, dtype=np.float64))


def lane() -> int:
    """Return which lane the calling thread is."""
    number = threading.current_thread().name.partition(" ")[0].removeprefix("interlock-drain").removeprefix("-")
    return int(number or 1) - 1


def writers_of(drain: Drain) -> int:
    number = drain.statistics().writers
    assert len(drain._writer.lanes) == number
    return number


class Steps:
    """Stands in the way of steps, by name and lane."""

    def __init__(self):
        self.gates: dict[tuple[str, int], threading.Event] = {}
        self.barriers: dict[str, threading.Barrier] = {}
        self.errors: dict[tuple[str, int], Exception] = {}
        self.begun: list[tuple[str, int]] = []
        self.came: dict[tuple[str, int], threading.Event] = {}

    def hold(self, name: str, number: int) -> threading.Event:
        """Hold a lane at a step until the event is set; `came` says when it is there."""
        self.came[name, number] = threading.Event()
        gate = self.gates[name, number] = threading.Event()
        return gate

    def wait(self, name: str, number: int) -> None:
        assert self.came[name, number].wait(20)

    def run_step(self, name, action):
        at = (name, lane())
        self.begun.append(at)
        if at in self.came:
            self.came[at].set()
            assert self.gates[at].wait(20)
        if name in self.barriers:
            self.barriers[name].wait(20)
        if at in self.errors:
            raise self.errors[at]
        action()

    def lanes_of(self, name: str) -> set[int]:
        return {number for step, number in self.begun if step == name}


@pytest.fixture
def steps(monkeypatch):
    made = Steps()
    monkeypatch.setattr(_publish, "run_step", made.run_step)
    yield made
    for gate in made.gates.values():
        gate.set()


# ---------------------------------------------------------------- at the same time


@pytest.mark.parametrize("step", ["write", "close"])
def test_two_writers_are_in_a_step_at_the_same_time(sink, steps, step, rows):
    steps.barriers[step] = threading.Barrier(2)
    with Drain(sink, writers=2, **SHARD) as drain:
        for first in (0, 4):
            put(drain, first)
        drain.flush()
    assert steps.lanes_of(step) == {0, 1}
    assert len(rows(sink)) == 8


def test_a_flush_commits_the_shards_of_all_writers_at_the_same_time(sink, steps, rows):
    gates = [steps.hold("write", number) for number in (0, 1)]
    with Drain(sink, writers=2, shard_bytes=80, commit_interval_s=3600) as drain:
        for number in (0, 1):  # the second is taken by the second writer, since the first one is busy
            put(drain, 10 * number, rows=4 + number)
            steps.wait("write", number)
        for gate in gates:
            gate.set()
        steps.barriers["sync"] = threading.Barrier(2)
        drain.flush()
        assert len(drain.committed) == 9
    assert len(rows(sink)) == 9


def test_what_one_writer_can_do_is_in_the_shards_that_one_makes(sink, folder, steps):
    gate = steps.hold("write", 0)
    with Drain(sink, writers=4, shard_bytes=1000) as drain:
        for first in range(0, 40, 4):
            put(drain, first)
        steps.wait("write", 0)
        gate.set()
    assert steps.lanes_of("write") == {0}
    assert len([path for path in folder.iterdir() if path.name.startswith("part-")]) == 1


def test_put_that_waits_for_room_has_another_writer_begin(sink, steps, rows):
    """Though rows for a whole shard never fit into the budget."""
    steps.barriers["write"] = threading.Barrier(2)
    with Drain(sink, writers=2, budget_bytes=256, shard_bytes=1 << 20) as drain:
        for first in range(8):
            put(drain, first, rows=1)  # a slot of 64 bytes
        drain.flush()
    assert steps.lanes_of("write") == {0, 1}
    assert len(rows(sink)) == 8


def test_rows_of_a_put_stay_together_in_order(tmp_path):
    with Drain(f"npy:{tmp_path / 'out'}", writers=3, shard_bytes=200) as drain:
        for first in range(0, 600, 6):
            put(drain, first, rows=6)
    shards = [path for path in (tmp_path / "out").iterdir() if path.name.startswith("part-")]
    ids = [np.load(path / "id.npy") for path in sorted(shards)]
    assert sorted(np.concatenate(ids).tolist()) == list(range(600))
    for shard in ids:  # where a row does not follow the one before, a put begins
        assert (shard[1:][np.diff(shard) != 1] % 6 == 0).all()


# ---------------------------------------------------------------- what a ticket says


def test_a_ticket_is_committed_only_when_all_before_it_are(sink, steps):
    gate = steps.hold("sync", 0)
    with Drain(sink, writers=2, **SHARD) as drain:
        writing = steps.hold("write", 0)
        first = put(drain, 0)
        steps.wait("write", 0)
        second = put(drain, 4)
        while len(drain.committed) < 4:
            threading.Event().wait(0.001)
        assert (first.written, second.written) == (False, False)
        writing.set()
        steps.wait("sync", 0)
        second.wait("written", timeout_s=20)
        assert 4 in drain.committed
        assert (first.committed, second.committed) == (False, False)
        gate.set()
        second.wait("committed", timeout_s=20)
        assert first.committed


def test_a_row_that_came_again_before_its_failure_was_written_down_has_not_failed(sink, steps, monkeypatch):
    reject, came, gate = Lane._reject, threading.Event(), threading.Event()

    def late(self, ids, reason):
        came.set()
        assert gate.wait(20)
        reject(self, ids, reason)

    monkeypatch.setattr(Lane, "_reject", late)
    writing = steps.hold("write", 0)
    with Drain(sink, writers=2, **SHARD) as drain:
        put(drain, 0)
        steps.wait("write", 0)
        drain.fail([7], "no luck")
        assert came.wait(20)  # on the second writer
        put(drain, 4)
        writing.set()
        while 7 not in drain.committed:
            threading.Event().wait(0.001)
        gate.set()
        drain.flush()
        assert drain.statistics().rows_failed == 0


# ---------------------------------------------------------------- failures


def test_a_writer_that_fails_ends_all_and_what_others_committed_stays(sink, steps, rows):
    writing = steps.hold("write", 0)
    steps.errors["write", 1] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    drain = Drain(sink, writers=2, **SHARD)
    first = put(drain, 0)
    steps.wait("write", 0)
    message = r"writing to .* failed: No space left on device; free some space .* what was committed stays"
    second = put(drain, 4)
    drain._writer.lanes[1].thread.join(20)
    with pytest.raises(SinkError, match=message):
        put(drain, 8)
    writing.set()  # its shard is full, so it is committed
    for use in (lambda: second.wait(timeout_s=20), drain.flush, drain.close, drain.close):
        with pytest.raises(SinkError, match=message):
            use()
    assert first.committed
    assert sorted(rows(sink)) == [one for one in range(12) if one in drain.committed] == [0, 1, 2, 3]
    assert not any(one.thread.is_alive() for one in drain._writer.lanes)
    assert verify_sink(sink).ok
    with Drain(sink, writers=2, **SHARD) as again:  # so the lock is free
        put(again, 4, rows=8)
    assert len(rows(sink)) == 12


def test_a_put_that_waits_hears_at_once_though_another_writer_hangs(sink, steps):
    steps.hold("write", 0)
    steps.errors["write", 1] = OSError(errno.EIO, os.strerror(errno.EIO))
    drain = Drain(sink, writers=2, budget_bytes=256, shard_bytes=64, timeout_s=20)

    def program() -> None:
        for first in range(100):
            put(drain, first, rows=1)

    with pytest.raises(SinkError, match="Input/output error"):
        program()
    steps.gates["write", 0].set()
    with pytest.raises(SinkError, match="Input/output error"):
        drain.close()


def test_a_bound_names_what_each_writer_does(sink, steps):
    for number in (0, 1):
        steps.hold("write", number)
    drain = Drain(sink, writers=2, timeout_s=0.2, **SHARD)
    for number, first in enumerate((0, 4)):
        put(drain, first)
        steps.wait("write", number)
    told = r"writer 1 is writing 4 rows \(0 to 3\), writer 2 is writing 4 rows \(4 to 7\)"
    with pytest.raises(BoundError, match=told):
        drain.flush()
    for gate in steps.gates.values():
        gate.set()
    drain._timeout_s = 20
    drain.close()


def test_a_program_that_never_closes_ends_all_its_writers_and_is_told_what_it_lost(tmp_path, rows):
    sink = f"npy:{tmp_path / 'out'}"
    code = """
    import sys
    import numpy as np
    from interlock.drain import Drain

    drain = Drain(sys.argv[1], writers=3, shard_bytes=1 << 30)
    drain.put([1, 2], np.ones(2))
    drain.flush()
    drain.put([3, 4, 5], np.ones(3)).wait("written")
    """
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", textwrap.dedent(code), sink],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: a drain was not closed: 3 rows that were put are not committed" in done.stderr
    assert rows(sink) == {1: 1.0, 2: 1.0}


@pytest.mark.parametrize("refused", ["interlock-drain", "interlock-drain-2"])
def test_a_thread_that_cannot_start_leaves_the_folder_free(sink, monkeypatch, refused):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.partition(" ")[0] == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Drain(sink, writers=2)
    with Drain(sink, writers=2) as drain:
        put(drain, 0)
        drain.flush()
        assert len(drain.committed) == 4


@pytest.mark.parametrize("writers", [0, -1])
def test_a_number_of_writers_is_positive(tmp_path, writers):
    with pytest.raises(UsageError, match=f"writers is {writers}"):
        Drain(f"npy:{tmp_path / 'out'}", writers=writers)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- everything at once


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_puts_failures_repeats_and_flushes_ends_with_each_row_once(tmp_path, seed, rows):
    sink = f"npy:{tmp_path / 'out'}"
    random = np.random.default_rng(seed)
    wanted: dict[int, float] = {}
    failed: set[int] = set()
    fresh = itertools.count()
    with Drain(sink, writers=3, nan="fail", budget_bytes=4096, shard_bytes=256, commit_interval_s=0.01) as drain:
        for _ in range(40):
            ids = np.array([next(fresh) for _ in range(random.integers(1, 9))])
            values = ids * 1.5
            kind = random.integers(0, 12)
            if kind == 0:
                drain.fail(ids, "no luck")
                failed |= set(ids.tolist())
                continue
            if kind == 1:
                values[0] = np.nan
                failed.add(int(ids[0]))
            elif kind == 2 and wanted:
                again = random.choice(list(wanted), 3)
                ids, values = np.concatenate((ids, again)), np.concatenate((values, again * 1.5))
            elif kind == 3:
                drain.flush()
            elif kind == 4 and failed:
                again = np.array([failed.pop()])
                drain.flush()  # so that the failure is known
                ids, values = np.concatenate((ids, again)), np.concatenate((values, again * 1.5))
            drain.put(ids, values)
            wanted |= {int(one): 1.5 * one for one, value in zip(ids, values, strict=True) if not np.isnan(value)}
        last = put(drain, next(fresh), rows=1)
        drain.flush()
        assert last.committed
        assert len(drain.committed) == len(wanted) + 1
        assert drain.statistics().rows_failed == len(failed)
        assert drain.statistics().rows_committed == len(wanted) + 1
    found = rows(sink)
    assert {one: found[one] for one in wanted} == wanted
    assert not failed & set(found)
    assert verify_sink(sink).ok


# ---------------------------------------------------------------- auto


@pytest.fixture
def eager_growth(monkeypatch):
    """Decides at each message of a writer, on a machine of three processors."""
    monkeypatch.setattr(_growth, "_WINDOW_S", 0.0)
    monkeypatch.setattr(_growth, "_JOBS_PER_LANE", 0)
    monkeypatch.setattr(_growth, "_WAITED", 0.0)
    monkeypatch.setattr(_growth, "_GAIN", 0.0)
    monkeypatch.setattr(_writer, "usable_writers", lambda: 3)


@pytest.fixture
def slow_writers(monkeypatch):
    """Each write takes a millisecond, so that writers are slower than whoever puts."""
    pause = threading.Event()

    def run_step(name, action):
        if name == "write":
            pause.wait(0.001)
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)


@pytest.mark.usefixtures("eager_growth", "slow_writers")
def test_by_itself_a_drain_begins_with_one_writer_and_adds_others_while_put_waits(sink, rows):
    with Drain(sink, budget_bytes=2048, shard_bytes=1 << 20) as drain:
        assert writers_of(drain) == 1
        for first in range(5000):
            put(drain, first, rows=1)
            if writers_of(drain) == 3:
                break
        assert writers_of(drain) == 3
        assert drain.statistics().wait_writer_s > 0
    assert len(rows(sink)) == first + 1


@pytest.mark.usefixtures("eager_growth", "slow_writers")
def test_a_writer_that_is_a_shard_behind_gets_help_before_put_waits(sink, rows):
    with Drain(sink, shard_bytes=128) as drain:
        for first in range(5000):
            put(drain, first, rows=1)
            if writers_of(drain) == 3:
                break
        assert writers_of(drain) == 3
        assert drain.statistics().wait_writer_s == 0
    assert sorted(rows(sink)) == list(range(first + 1))


def test_a_writer_that_is_taken_back_commits_what_it_has(sink, steps, monkeypatch):
    wanted = [2]
    monkeypatch.setattr(_growth.Growth, "observe", lambda *_: wanted[0])
    first, second = steps.hold("write", 0), steps.hold("close", 1)
    with Drain(sink, **SHARD) as drain:
        drain._writer._waited(1.0)
        put(drain, 0, rows=1)
        steps.wait("write", 0)
        put(drain, 1, rows=5)  # a shard and a row
        steps.wait("close", 1)
        wanted[0] = 1
        drain._writer._waited(2.0)
        second.set()
        until_s, pause = time.monotonic() + 10, threading.Event()
        while len(drain.committed) < 5:
            assert time.monotonic() < until_s
            pause.wait(0.01)
        assert 0 not in drain.committed
        first.set()


@pytest.mark.usefixtures("eager_growth")
def test_a_producer_that_never_waits_leaves_one_writer(sink):
    with Drain(sink) as drain:
        for first in range(50):
            put(drain, first, rows=1)
        drain.flush()
        assert writers_of(drain) == 1


@pytest.mark.usefixtures("eager_growth")
@pytest.mark.parametrize("writers", [3, "auto"])
def test_a_function_has_one_writer_and_gets_puts_in_order(writers):
    came: list[int] = []
    with Drain(lambda ids, _: came.extend(ids.tolist()), writers=writers, budget_bytes=512) as drain:
        for first in range(100):
            put(drain, first, rows=1)
        assert writers_of(drain) == 1
    assert came == list(range(100))


@pytest.mark.usefixtures("eager_growth")
def test_one_writer_stays_one(sink, rows):
    with Drain(sink, writers=1, budget_bytes=512, shard_bytes=128) as drain:
        for first in range(100):
            put(drain, first, rows=1)
        assert writers_of(drain) == 1
    assert list(rows(sink)) == list(range(100))


@pytest.mark.usefixtures("eager_growth", "slow_writers")
def test_a_flush_with_much_before_it_gets_help(sink, rows):
    """Nobody puts any more: what is seen then is seen by the flush."""
    with Drain(sink, shard_bytes=512) as drain:
        growth = drain._writer._growth
        assert growth is not None
        growth.most = 1
        for first in range(500):
            put(drain, first, rows=1)
        assert writers_of(drain) == 1
        growth.most, growth._settled = 3, False
        drain.flush()
        assert writers_of(drain) == 3
    assert sorted(rows(sink)) == list(range(500))


@pytest.mark.usefixtures("eager_growth", "slow_writers")
@pytest.mark.parametrize(("copies", "expected"), [(0, 3), (10, 3), (30, 2), (100, 1)])
def test_there_are_no_more_than_encode_within_the_budget(sink, monkeypatch, copies, expected):
    """Jobs of 72 bytes, and a budget of 60 of them."""
    monkeypatch.setattr(
        ParquetSink if sink.startswith("parquet:") else NpySink, "working_copies", copies, raising=False
    )
    with Drain(sink, budget_bytes=60 * 72, shard_bytes=64) as drain:
        for first in range(300):
            put(drain, first, rows=1)
        drain.flush()
        assert writers_of(drain) == expected
