"""What another rank, a merge or a crash does in between, while somebody opens or reads a sink."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import numpy as np
import pytest

from interlock.drain import Drain, MergeReport, merge_sink, open_sink, read_committed, settle_sink, verify_sink
from interlock.drain._files import size_of, unseal
from interlock.drain._folder import Folder
from interlock.drain._locks import FolderLock
from interlock.drain._manifest import ManifestReader
from interlock.drain._rewrite import opened_workshop
from interlock.errors import SinkConflictError, SinkError, UsageError


@pytest.fixture
def unsettled(monkeypatch):
    """Ranks that close leave rows that others have too, as those that are killed do."""
    monkeypatch.setattr("interlock.drain._drain.settle_sink", lambda *_, **__: 0)


def put(drain, ids, scale=1.5):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * float(scale)})


def test_a_sink_that_another_rank_begins_just_now_is_not_taken_for_somebody_else_s(sink, monkeypatch, rows):
    """It has no `run.json` when that is looked for, and has one when the rest is looked at."""
    looks_ours = Folder.looks_ours
    others: list[Any] = []

    def late(folder):
        if not others:
            others.append(None)
            others[0] = Drain(sink, rank=(0, 2))
        return looks_ours(folder)

    monkeypatch.setattr(Folder, "looks_ours", late)
    with Drain(sink, rank=(1, 2)) as second, others[0] as first:
        put(first, [0])
        put(second, [1])
    assert rows(sink) == {0: 0.0, 1: 1.5}


def test_a_rank_that_waits_for_a_merge_has_its_folders_afterwards(sink, monkeypatch, rows):
    with Drain(sink, rank=(0, 2)) as first:
        put(first, [0])
    merged: list[MergeReport] = []
    begun: list[str] = []

    def late(path, text, **options):
        if path.name == "open" and not begun:
            begun.append(text)
            merged.append(merge_sink(sink))
        return FolderLock(path, text, **options)

    monkeypatch.setattr("interlock.drain._folder.FolderLock", late)
    with Drain(sink, rank=(1, 2)) as second:
        put(second, [1])
    assert merged
    assert rows(sink) == {0: 0.0, 1: 1.5}


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("lost", ["manifest.jsonl", "manifest-r00001.jsonl"])
def test_rows_of_a_shard_that_is_taken_up_by_a_merge_are_there_once_behind_it(sink, folder, rows, lost):
    """And that of the lowest rank stays, whichever of the two was not recorded."""
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [0, 1])
        put(second, [1, 2], scale=-1)
    (folder / "_interlock" / lost).write_bytes(b"")
    report = merge_sink(sink, repeats="first")
    assert (report.rows, report.rows_removed) == (3, 1)
    assert rows(sink) == {0: 0.0, 1: 1.5, 2: -2.0}
    assert verify_sink(sink).ok


def test_a_line_that_a_live_rank_goes_on_writing_is_no_damage(sink, folder, monkeypatch):
    with Drain(sink, shard_bytes=16) as drain:
        put(drain, range(4))
    manifest = folder / "_interlock/manifest.jsonl"
    content = manifest.read_bytes()
    first = content.index(b"\n") + 1
    manifest.write_bytes(content[: first + 20])

    def late(line):
        manifest.write_bytes(content)
        return unseal(line)

    reader = ManifestReader(Folder.at(str(folder), open_sink(sink)[0]))
    records = reader.records()
    next(records)
    monkeypatch.setattr("interlock.drain._manifest.unseal", late)
    assert not list(records)
    assert not reader.problems
    assert reader.whole_bytes == first


@pytest.mark.usefixtures("unsettled")
def test_ids_are_read_though_a_rank_that_closes_replaces_a_shard_meanwhile(sink, monkeypatch):
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [0, 1])
        put(second, [1, 2])
    removed: list[int] = []
    begun: list[str] = []

    def late(path):
        if not begun:
            begun.append(sink)
            removed.append(settle_sink(sink))
        return size_of(path)

    monkeypatch.setattr("interlock.drain._folder.size_of", late)
    committed = read_committed(sink)
    assert removed == [1]
    assert [one in committed for one in range(4)] == [True, True, True, False]


def test_rows_whose_shard_was_replaced_by_another_rank_are_no_bare_error_of_the_system(sink, folder):
    with Drain(sink) as drain:
        put(drain, [0, 1])
    with Drain(sink) as drain:
        for shard in folder.glob("part-*"):
            shutil.rmtree(shard) if shard.is_dir() else shard.unlink()
        with pytest.raises((SinkError, UsageError), match=r"cannot read|is no whole shard"):
            put(drain, [1])


def test_outputs_that_mean_nothing_leave_the_sink_to_others(sink, rows):
    nonsense: Any = {"output": "largest"}
    with pytest.raises(UsageError, match="outputs"):
        Drain(sink, outputs=nonsense)
    with Drain(sink) as drain:
        put(drain, [1])
    assert rows(sink) == {1: 1.5}


def test_a_full_disk_leaves_no_lock_behind(sink, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("interlock.drain._locks.os.pwrite", full)
        with pytest.raises(SinkError, match="No space left"):
            Drain(sink)
    with Drain(sink, timeout_s=2) as drain:
        put(drain, [1])


def test_there_are_no_more_ranks_than_names_of_files_can_tell_apart(sink):
    with pytest.raises(UsageError, match="there are 100,001 ranks; at most 100,000"):
        Drain(sink, rank=(100_000, 100_001))
    with Drain(sink, rank=(99_999, 100_000)) as drain:
        put(drain, [1])
    assert verify_sink(sink).ok


def test_a_lock_that_is_held_is_still_told_with_its_holder(sink):
    with Drain(sink), pytest.raises(SinkConflictError, match=rf"process {os.getpid()} holds"):
        Drain(sink)


def test_no_shard_gets_the_name_of_one_that_was_dropped(sink, rows):
    """Else it would count no more either."""
    with Drain(sink, rank=(1, 2), shard_bytes=16) as drain:
        put(drain, [0, 1])
    with opened_workshop(sink, alone=True) as work:
        kept, dropped = work.holdings.shards
        work.drop(dropped)
        work.holdings.shards.remove(dropped)
        assert work.rewrite(1, [(kept, np.arange(1))]).name != dropped.name
    with Drain(sink, rank=(1, 2)) as drain:
        assert 0 in drain.committed
    assert rows(sink) == {0: 0.0}
