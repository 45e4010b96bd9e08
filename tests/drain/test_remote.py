"""Sinks in remote stores: what is written, who may write, what fails and how it is told."""

from __future__ import annotations

import errno
import gc
import json
import os
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from interlock.drain import (
    Drain,
    compact_sink,
    discard_sink,
    merge_sink,
    read_committed,
    read_status,
    resume_plan,
    verify_sink,
)
from interlock.drain._files import seal
from interlock.drain._manifest import ShardRecord
from interlock.drain._remote import _client, _entries, _leases
from interlock.drain._remote._bucket import Bucket
from interlock.drain._sinks._npy import NpySink
from interlock.errors import SinkConflictError, SinkError, UsageError

SCHEMES = ["parquet", "arrow", "npy", "safetensors", "zarr", "webdataset"]


@pytest.fixture
def path(tmp_path):
    """Where the objects of `sink` lie."""
    return tmp_path / "out"


@pytest.fixture
def sink(path) -> str:
    return f"npy:bucket://{path}"


@pytest.fixture
def memory():
    """A place in `memory://` that is empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def put(drain, ids, scale=1.5):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * float(scale)})


def holder(path: Path, **other) -> None:
    """Write a lease as another drain would."""
    value = {"host": "elsewhere", "machine": "m", "pid": 1, "token": "0" * 8, "until": time.time() + 60, **other}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seal(value))


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_of_every_sink_come_back_by_any_reader_and_are_resumed(scheme, path, rows):
    sink = f"{scheme}:bucket://{path}"
    with Drain(sink, total=9, shard_bytes=40) as drain:
        put(drain, range(4))
        drain.flush()
        put(drain, [3, 4])  # the same bytes again: read back from the store, and dropped
        with pytest.raises(UsageError, match="id 2 was put twice"):
            put(drain, [2], scale=9)
    with Drain(sink, total=9) as drain:
        assert list(drain.todo(range(9))) == [5, 6, 7, 8]
        put(drain, range(5, 8))
        drain.fail([8], "too long")
    assert rows(f"{scheme}:{path}") == {row: 1.5 * row for row in range(8)}
    assert rows(f"{scheme}:{path}").keys() == {row for row in range(9) if row in read_committed(sink)}
    status, report = read_status(sink), verify_sink(sink)
    assert (status.rows_committed, status.rows_missing, status.rows_failed) == (8, 1, 1)
    assert report.ok
    assert [list(plan.todo) for plan in resume_plan(sink, 2)] == [[8], []]


def test_memory_is_a_store_too_and_nothing_of_ours_is_left_on_this_machine(memory, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Drain("safetensors:memory://out") as drain:
        put(drain, range(5))
    with Drain("safetensors:memory://out") as drain:
        assert len(drain.committed) == 5
    assert verify_sink("safetensors:memory://out").ok
    del drain
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert not [name for name in memory.find("/out") if name.endswith(("/lock", "/open"))]


def test_a_url_of_this_machine_is_a_folder(tmp_path, rows):
    with Drain(f"npy:file://{tmp_path}/out") as drain:
        put(drain, [1])
    assert rows(f"npy:{tmp_path}/out") == {1: 1.5}
    assert (tmp_path / "out/_interlock/manifest.jsonl").is_file()


def test_the_file_that_makes_a_folder_readable_comes_last_and_goes_first(sink, store, monkeypatch):
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(store, "hook", staticmethod(lambda call, path: calls.append((call, Path(path).name))))
    with Drain(sink) as drain:
        put(drain, [1])
    put_names = [name for call, name in calls if call == "put"]
    assert (len(put_names), put_names[-1]) == (3, "shard.json")
    calls.clear()
    discard_sink(sink)
    removed = [name for call, name in calls if call == "rm" and name.endswith((".npy", "shard.json"))]
    assert (len(removed), removed[0]) == (3, "shard.json")


def test_a_foreign_folder_another_format_and_other_conditions_are_refused_and_nothing_is_touched(sink, path):
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(SinkConflictError, match="written by something else"):
        Drain(sink, restart=True)
    assert [one.name for one in path.iterdir()] == ["notes.txt"]
    (path / "notes.txt").unlink()
    with Drain(sink, fingerprint={"model": "a"}) as drain:
        put(drain, [1])
    with pytest.raises(SinkConflictError, match="holds npy shards"):
        Drain(f"arrow:bucket://{path}")
    with pytest.raises(SinkConflictError, match='model was "a", is now "b"'):
        Drain(sink, fingerprint={"model": "b"})
    (path / "part-theirs").mkdir()
    (path / "part-theirs/shard.json").write_text("{}")
    with Drain(sink, fingerprint={"model": "b"}, restart=True) as drain:
        assert not len(drain.committed)
    assert (path / "part-theirs/shard.json").exists()


def test_many_objects_of_a_log_become_one_when_the_sink_is_opened(sink, path, monkeypatch):
    monkeypatch.setattr(_entries, "MOST_ENTRIES", 3)
    for row in range(6):
        with Drain(sink) as drain:
            put(drain, [row])
            assert len(drain.committed) == row
    entries = sorted((path / "_interlock/manifest.jsonl").iterdir())
    assert len(entries) < 5
    (path / "_interlock/manifest.jsonl/00000001.jsonl").write_bytes(  # a crash before it was removed
        ShardRecord("part-00000000-000000", 1, 1, "0" * 64, "str").line()
    )
    assert verify_sink(sink).ok
    assert len(read_committed(sink)) == 6


# ---------------------------------------------------------------- ranks


def test_ranks_write_side_by_side_and_another_number_of_them_goes_on(sink, path, rows):
    with Drain(sink, rank=(0, 2), total=12) as first, Drain(sink, rank=(1, 2), total=12) as second:
        put(first, [0, 2, 4])
        put(second, [0, 1, 3])  # row 0 is padding
    assert verify_sink(sink).ok
    with Drain(sink, rank=(2, 3), total=12) as third:
        put(third, list(third.todo(range(12))))
    merged = merge_sink(sink)
    assert merged.rows_removed == 0
    with Drain(sink, total=12) as last:
        put(last, list(last.todo(range(12))))
    assert compact_sink(sink).shards == 1
    assert rows(f"npy:{path}") == {row: 1.5 * row for row in range(12)}
    assert verify_sink(sink).ok


# ---------------------------------------------------------------- who may write


def test_a_second_drain_is_refused_while_the_lease_is_valid(sink, path):
    with Drain(sink), pytest.raises(SinkConflictError, match=rf"process {os.getpid()} on .* holds bucket://.*lock"):
        Drain(sink)
    holder(path / "_interlock/lock")
    with pytest.raises(SinkConflictError, match=r"process 1 on elsewhere holds .*its hold ends in (59|60) s"):
        Drain(sink)
    assert read_status(sink).is_written


@pytest.mark.parametrize("state", ["expired", "dead", "damaged"])
def test_a_lease_that_means_nothing_any_more_is_taken_over(sink, path, rows, state):
    with Drain(sink) as drain:
        put(drain, [1])
    gone = {"machine": _leases._machine(), "pid": 2**22 + 1}
    holder(path / "_interlock/lock", **({"until": time.time() - 1} if state == "expired" else gone))
    if state == "damaged":
        (path / "_interlock/lock").write_bytes(b"{")
    with Drain(sink) as drain:
        put(drain, [2])
    assert rows(f"npy:{path}") == {1: 1.5, 2: 3.0}


def test_a_drain_that_lost_its_lease_commits_nothing_and_says_so(sink, path, rows):
    zombie = Drain(sink)
    put(zombie, [1])
    zombie.flush()
    holder(path / "_interlock/lock", until=time.time() - 1)
    with Drain(sink) as heir:
        put(zombie, [2])
        with pytest.raises(SinkConflictError, match="another drain writes to this sink now"):
            zombie.flush()
        put(heir, [3])
    with pytest.raises(SinkConflictError, match="another drain writes"):
        zombie.close()
    assert {1, 3} == {row for row in range(5) if row in read_committed(sink)}
    with Drain(sink) as drain:  # row 2 was uploaded and not recorded: it is whole, and taken up
        put(drain, list(drain.todo(range(1, 4))))
    assert rows(f"npy:{path}") == {1: 1.5, 2: 3.0, 3: 4.5}


def test_of_two_drains_that_both_believe_in_their_lease_the_later_one_commits(sink, path, monkeypatch):
    """Clocks and checks fail here: what decides is that the next number of the manifest is taken."""
    zombie = Drain(sink)
    put(zombie, [1])
    zombie.flush()
    holder(path / "_interlock/lock", until=time.time() - 1)
    monkeypatch.setattr(_leases.Leases, "check", lambda *_: None)
    with Drain(sink) as heir:
        put(zombie, [2])
        with pytest.raises(SinkConflictError, match="another drain writes to this sink now"):
            zombie.flush()
        put(heir, [2])
        heir.flush()
    with pytest.raises(SinkConflictError):
        zombie.close()
    assert {1, 2} == {row for row in range(5) if row in read_committed(sink)}


def test_a_lease_is_renewed_while_it_is_held(sink, path, monkeypatch):
    monkeypatch.setattr(_leases, "_RENEW_EVERY_S", 0.01)
    with Drain(sink):
        first = json.loads((path / "_interlock/lock").read_bytes())["until"]
        pause, until_s = threading.Event(), time.monotonic() + 20
        while json.loads((path / "_interlock/lock").read_bytes())["until"] == first:
            assert time.monotonic() < until_s
            pause.wait(0.01)
    assert not (path / "_interlock/lock").exists()


def test_a_store_that_writes_over_what_is_there_is_found_out_and_names_differ(tmp_path, rows):
    sink = f"npy:loose://{tmp_path}/out"
    with Drain(sink) as drain:
        put(drain, [1])
        with pytest.raises(SinkConflictError, match="being written"):
            Drain(sink)
    (entry,) = (tmp_path / "out/_interlock/manifest.jsonl").iterdir()
    assert len(entry.stem) == len("00000001-01234567")
    assert rows(f"npy:{tmp_path}/out") == {1: 1.5}


# ---------------------------------------------------------------- what fails


def fail_at(store, monkeypatch, call, name, error, times=1):
    """Make the next calls whose path has `name` in it fail; return how many are left to."""
    left = [times]

    def hook(done, path):
        if done == call and name in path and left[0]:
            left[0] -= 1
            raise error

    monkeypatch.setattr(store, "hook", staticmethod(hook))
    return left


@pytest.mark.parametrize(
    ("call", "name"), [("put", "part-"), ("part", "part-"), ("pipe", "manifest"), ("part", "manifest"), ("find", "")]
)
def test_what_passes_is_tried_again(sink, path, store, monkeypatch, rows, call, name):
    monkeypatch.setattr(_client, "_PAUSES_S", (0.0, 0.0, 0.0))
    with Drain(sink) as drain:
        left = fail_at(store, monkeypatch, call, name, ConnectionResetError(errno.ECONNRESET, "reset by peer"), 2)
        put(drain, [1])
    assert left == [0]
    assert rows(f"npy:{path}") == {1: 1.5}
    assert verify_sink(sink).ok


@pytest.mark.parametrize(
    ("error", "tries", "what"),
    [
        (PermissionError("Access Denied"), 1, "Access Denied.*check the permissions"),
        (OSError(errno.ENOSPC, "No space left"), 1, "No space left.*free some space"),
        (ConnectionError("cannot reach http://x/?X-Amz-Signature=0123&b=1"), 4, "Signature=…&b=1"),
        (RuntimeError("bad://me:secret@host"), 4, "RuntimeError: bad://…@host"),
        (NotImplementedError("read only"), 1, "NotImplementedError: read only"),
    ],
    ids=["permission", "space", "unreachable", "unknown", "read-only"],
)
def test_what_does_not_pass_is_a_clear_error_without_secrets(sink, path, store, monkeypatch, rows, error, tries, what):
    monkeypatch.setattr(_client, "_PAUSES_S", (0.0, 0.0, 0.0))
    drain = Drain(sink)
    put(drain, [1])
    drain.flush()
    left = fail_at(store, monkeypatch, "put", "part-", error, 100)
    put(drain, [2])
    with pytest.raises(SinkError, match=rf"writing to npy:bucket://.* failed: .*{what}"):
        drain.close()
    assert 100 - left[0] in {tries, 2 * tries}  # files of a shard are uploaded side by side
    monkeypatch.setattr(store, "hook", staticmethod(lambda *_: None))
    with Drain(sink) as drain:
        assert list(drain.todo([1, 2])) == [2]
        put(drain, [2])
    assert rows(f"npy:{path}") == {1: 1.5, 2: 3.0}


def test_a_record_whose_answer_was_lost_is_there_once(sink, path, store, monkeypatch):
    monkeypatch.setattr(_client, "_PAUSES_S", (0.0, 0.0, 0.0))
    place = store._place
    lost: list[str] = []

    def answered_by_nothing(self, source, where, mode):
        place(self, source, where, mode)
        if "manifest" in where and not lost:
            lost.append(where)
            raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    monkeypatch.setattr(store, "_place", answered_by_nothing)
    with Drain(sink) as drain:
        put(drain, [1])
        drain.flush()
        put(drain, [2])
    assert lost
    assert len(list((path / "_interlock/manifest.jsonl").iterdir())) == 2
    assert verify_sink(sink).rows == 2


def test_a_call_that_hangs_is_given_up_in_time(sink, store, monkeypatch):
    gate = threading.Event()

    def hang(call, _path):
        if call == "put":
            gate.wait(30)

    drain = Drain(sink, timeout_s=0.3)
    monkeypatch.setattr(store, "hook", staticmethod(hang))
    put(drain, [1])
    start_s = time.monotonic()
    with pytest.raises((SinkError, TimeoutError), match=r"within 0.3 s|not done after"):
        drain.close()
    assert time.monotonic() - start_s < 15
    gate.set()


@pytest.mark.parametrize("name", ["../evil", "part-0123abcd-000000/../../evil", "/etc/passwd", "_interlock"])
def test_a_manifest_cannot_lead_out_of_the_folder(sink, path, name):
    with Drain(sink) as drain:
        put(drain, [1])
    entry = path / "_interlock/manifest.jsonl/00000002.jsonl"
    entry.write_bytes(ShardRecord(name, 1, 1, "0" * 64, "str").line())
    with pytest.raises(SinkConflictError, match="is no shard of this sink"):
        Drain(sink)


def test_an_object_whose_name_leads_out_of_its_shard_is_not_downloaded(sink, path, monkeypatch):
    with Drain(sink) as drain:
        put(drain, [1])
    (shard,) = (one.name for one in path.glob("part-*"))
    bucket = Bucket(f"bucket://{path}", NpySink(), 0, 10.0)
    found = {f"{shard}/id.npy": 1, f"{shard}/../../evil": 1}
    monkeypatch.setattr(_client.Client, "find", lambda *_: found)
    with pytest.raises(OSError, match="leads out of its shard"):
        bucket.fetch(shard)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("ftp://me:secret@host/out", "with a password is no sink"),
        ("s3://bucket/out?X-Amz-Signature=secret", r"with \? or :: is no sink"),
        ("zip://out::memory://a.zip", r"with \? or :: is no sink"),
        ("nowhere://out", "Protocol not known: nowhere"),
    ],
)
def test_a_url_that_is_no_place_for_a_sink_is_refused_and_no_secret_told(url, what):
    with pytest.raises(UsageError, match=what) as caught:
        Drain(f"npy:{url}")
    assert "secret" not in str(caught.value)


def test_a_catalogue_needs_a_folder(path):
    pytest.importorskip("deltalake")
    with pytest.raises(UsageError, match="delta: needs a folder of this machine"):
        Drain(f"delta:bucket://{path}")
    assert not path.exists()


def test_a_shard_of_other_bytes_is_found_by_its_hash(sink, path):
    with Drain(sink) as drain:
        put(drain, [1])
    (file,) = path.glob("part-*/output.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    (problem,) = verify_sink(sink).problems
    assert problem[1] == "its bytes do not match their hash"
    file.unlink()
    with pytest.raises(SinkConflictError, match=r"bucket://.*part-.* has .* bytes.*interlock verify"):
        Drain(sink)
