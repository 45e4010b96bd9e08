"""A full shard is synced and hashed while the next is written, and is committed before that one is closed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from interlock.drain import Drain, _files, _folder, _publish, verify_sink
from interlock.errors import SinkError

LATER = ["sync", "hash", "rename", "sync-folder", "publish", "record", "end"]
SHARD: dict[str, Any] = {"shard_bytes": 64}
"""Eight rows of eight bytes beside their ids: four to a shard."""


def put(drain: Drain, first: int, rows: int = 4):
    return drain.put(np.arange(first, first + rows), np.arange(first, first + rows, dtype=np.float64))


@pytest.fixture
def steps(monkeypatch):
    """The steps that were begun, in order."""
    begun: list[str] = []

    def run_step(name, action):
        begun.append(name)
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    return begun


@pytest.fixture
def held_sync(monkeypatch):
    """Holds the syncing of shards until it is set."""
    gate = threading.Event()
    sync_shard = _files.sync_shard

    def held(path):
        assert gate.wait(20)
        sync_shard(path)

    monkeypatch.setattr(_folder, "sync_shard", held)
    yield gate
    gate.set()


def test_steps_of_successive_shards_overlap_by_one_and_are_each_in_order(sink, monkeypatch, rows):
    begun: list[str] = []
    gate = threading.Event()

    def run_step(name, action):
        if not begun:  # so that all puts are there before the first is written
            assert gate.wait(20)
        begun.append(name)
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    with Drain(sink, **SHARD) as drain:
        for first in range(0, 12, 4):
            put(drain, first)
        gate.set()
        drain.flush()
    write = ["open", "write", "close"]
    assert begun == ["schema", *write, "open", "write", *LATER, "close", "open", "write", *LATER, "close", *LATER]
    assert len(rows(sink)) == 12


def test_the_next_shard_is_written_while_a_full_one_is_synced_and_nothing_is_committed_early(
    sink, folder, held_sync, rows
):
    with Drain(sink, **SHARD) as drain:
        first = put(drain, 0)
        second = put(drain, 4, rows=2)
        second.wait("written", timeout_s=20)
        assert not first.committed
        assert len(drain.committed) == 0
        assert [path.name for path in folder.iterdir() if path.name.startswith("part-")] == []
        assert len(list((folder / "_interlock/tmp").iterdir())) == 2
        held_sync.set()
        first.wait("committed", timeout_s=20)
    assert len(rows(sink)) == 6


def test_a_full_shard_is_committed_when_the_writer_has_nothing_else_to_do(sink, steps):
    with Drain(sink, commit_interval_s=3600, **SHARD) as drain:
        put(drain, 0).wait("committed", timeout_s=20)
        assert steps[-1] in {"record", "end"}


def test_a_row_that_failed_behind_a_full_shard_does_not_hold_its_ticket(sink, held_sync):
    with Drain(sink, commit_interval_s=3600, **SHARD) as drain:
        ticket = put(drain, 0)
        ticket.wait("written", timeout_s=20)
        drain.fail([9], "no luck")
        assert not ticket.committed
        held_sync.set()
        ticket.wait("committed", timeout_s=20)


def test_a_sync_that_fails_is_raised_and_that_shard_is_not_committed(sink, folder, monkeypatch):
    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_folder, "sync_shard", refuse)
    drain = Drain(sink, **SHARD)
    ticket = put(drain, 0)
    with pytest.raises(SinkError, match="Input/output error"):
        ticket.wait("committed", timeout_s=20)
    with pytest.raises(SinkError, match="Input/output error"):
        drain.close()
    assert len(drain.committed) == 0
    assert list((folder / "_interlock/tmp").iterdir()) == []
    assert verify_sink(sink).ok


def test_a_record_that_fails_is_not_tried_again(sink, monkeypatch):
    """Else half a line would be followed by another, and the manifest would be damaged."""
    tries = []

    def run_step(name, action):
        if name == "record":
            tries.append(name)
            raise OSError(28, "No space left on device")
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    drain = Drain(sink, **SHARD)
    put(drain, 0)
    with pytest.raises(SinkError, match="No space left"):
        drain.close()
    assert tries == ["record"]


def test_a_full_shard_is_committed_though_the_next_fails(sink, monkeypatch, rows):
    gate = threading.Event()
    writes = []

    def run_step(name, action):
        if name == "write":
            assert gate.wait(20)
            writes.append(name)
            if len(writes) == 2:
                raise OSError(28, "No space left on device")
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    drain = Drain(sink, **SHARD)
    put(drain, 0)
    put(drain, 4)
    gate.set()
    with pytest.raises(SinkError, match="No space left"):
        drain.close()
    assert sorted(rows(sink)) == [one for one in range(8) if one in drain.committed] == [0, 1, 2, 3]
    assert verify_sink(sink).ok


def test_a_full_shard_that_fails_while_the_writer_ends_says_why(sink, monkeypatch):
    writing, gate = threading.Event(), threading.Event()

    def run_step(name, action):
        if name == "hash":
            raise OSError(5, "Input/output error")
        if name == "write":
            writing.set()
            assert gate.wait(20)
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    drain = Drain(sink, **SHARD)
    ticket = put(drain, 0)
    assert writing.wait(20)
    drain._link.stop.set()  # as `close` does when its bound is over: this job is the last
    gate.set()
    with pytest.raises(SinkError, match="Input/output error"):
        ticket.wait("committed", timeout_s=20)
    with pytest.raises(SinkError, match="Input/output error"):
        drain.close()


def test_a_thread_that_cannot_start_leaves_the_syncing_to_the_step(sink, steps, monkeypatch, rows):
    """As while the interpreter ends."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("interlock-drain "):
            kind = thread.name.split()[-1]
            if kind in {"sync", "hash"}:
                raise RuntimeError("can't start new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Drain(sink, **SHARD) as drain:
        put(drain, 0)
    assert len(rows(sink)) == 4
    assert steps.count("record") == 1
