"""`fsync="never"`: what it leaves out, and what the next run makes of shards that a power cut damaged."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from interlock.drain import Drain, _digests, _unsynced, compact_sink, merge_sink, read_status, verify_sink
from interlock.errors import SinkConflictError, SinkError, UsageError


def write(sink, ids, **options):
    with Drain(sink, shard_bytes=64, **options) as drain:
        for start in range(0, len(ids), 4):
            some = np.array(ids[start : start + 4])
            drain.put(some, some * 1.5)


def finish(sink, rows=12, **options):
    with Drain(sink, **options) as drain:
        left = drain.todo(range(rows))
        drain.put(np.asarray(left), np.asarray(left) * 1.5)
    return len(left)


@pytest.fixture
def new_boot(monkeypatch, tmp_path):
    """Starts the machine anew, for all that a drain can tell."""

    def start() -> None:
        file = tmp_path / "boot"
        file.write_text(f"another {os.urandom(4).hex()}")
        monkeypatch.setattr(_unsynced, "_BOOT", file)

    return start


@pytest.fixture
def synced(monkeypatch):
    """What was synced, by name."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor):
        names.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


@pytest.fixture
def hashed(monkeypatch):
    """The shards that were hashed, by name."""
    names: list[str] = []
    prepare = _digests.Digest._prepare

    def noted(digest):
        names.append(digest._path.name)
        prepare(digest)

    monkeypatch.setattr(_digests.Digest, "_prepare", noted)
    return names


def shards(folder):
    return [path for path in sorted(folder.iterdir()) if path.name.startswith("part-")]


def body(shard):
    """A file of a shard that holds rows."""
    return next(shard.glob("output.npy")) if shard.is_dir() else shard


def zero(path, start=0, stop=None):
    content = bytearray(path.read_bytes())
    stop = len(content) if stop is None else stop
    content[start:stop] = bytes(stop - start)
    path.write_bytes(content)


def test_with_commit_everything_is_synced_before_it_counts(sink, synced):
    write(sink, range(8))
    assert sum(".tmp" in name for name in synced) >= 2
    assert sum(name.endswith("manifest.jsonl") for name in synced) >= 2
    assert read_status(sink).fsync == "commit"


def test_with_never_no_shard_and_no_line_is_synced(sink, folder, synced, rows):
    with Drain(sink, shard_bytes=64, fsync="never") as drain:
        synced.clear()
        for start in range(0, 8, 4):
            drain.put(np.arange(start, start + 4), np.ones(4))
        drain.fail([9], "no luck")
    assert [name for name in synced if "run.json" not in name and not name.endswith("_interlock")] == []
    assert len(rows(sink)) == 8
    assert read_status(sink).fsync == "never"
    assert verify_sink(sink).ok
    assert len(shards(folder)) == 2


def test_while_the_machine_runs_nothing_is_read_again(sink, hashed):
    write(sink, range(8), fsync="never")
    hashed.clear()
    assert finish(sink, fsync="never") == 4
    assert len(hashed) == 1


def test_a_run_that_commits_begins_by_syncing_what_one_that_does_not_left(sink, folder, synced, new_boot, hashed):
    write(sink, range(8), fsync="never")
    synced.clear()
    hashed.clear()
    with Drain(sink):
        pass
    for shard in shards(folder):
        assert str(shard) in {name.removesuffix("/output.npy") for name in synced}
    assert str(folder / "_interlock/manifest.jsonl") in synced
    assert read_status(sink).fsync == "commit"
    assert hashed == []
    new_boot()
    zero(body(shards(folder)[0]))
    with Drain(sink):  # it is on the storage, so only its size is looked at
        pass
    assert hashed == []


def test_shards_that_survived_are_hashed_once_after_a_new_start(sink, new_boot, hashed, rows):
    write(sink, range(8), fsync="never")
    new_boot()
    hashed.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Drain(sink, fsync="never") as drain:
            assert len(drain.committed) == 8
        assert len(hashed) == 2
        hashed.clear()
        new_boot()
        with Drain(sink, fsync="never"):
            pass
    assert hashed == []
    assert len(rows(sink)) == 8


DAMAGES = {
    "cut": lambda shard: os.truncate(body(shard), 7),
    "empty": lambda shard: os.truncate(body(shard), 0),
    "zeroed": lambda shard: zero(body(shard)),
    "gone": lambda shard: shutil.rmtree(shard) if shard.is_dir() else shard.unlink(),
}


@pytest.mark.parametrize(
    ("damage", "then"), [("cut", "commit"), ("empty", "never"), ("zeroed", "commit"), ("gone", "never")]
)
def test_a_shard_that_a_power_cut_damaged_is_set_aside_and_its_rows_are_pending(
    every_sink, tmp_path, new_boot, rows, damage, then
):
    folder = tmp_path / "out"
    write(every_sink, range(12), fsync="never")
    hurt = shards(folder)[1]
    DAMAGES[damage](hurt) if hurt.is_file() or damage == "gone" else _hurt_folder(hurt, damage)
    new_boot()
    assert not verify_sink(every_sink).ok
    with pytest.warns(RuntimeWarning, match=rf"fsync='never'.*did not survive \(1: {hurt.name}.*pending again"):
        assert finish(every_sink, fsync=then) == 4
    assert rows(every_sink) == {one: 1.5 * one for one in range(12)}
    assert verify_sink(every_sink).ok
    kept = [path.name for path in (folder / "_interlock/quarantine").iterdir()]
    assert kept == ([] if damage == "gone" else [f"{hurt.name}.quarantined"])


def _hurt_folder(shard, damage):
    largest = max((path for path in shard.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    zero(largest) if damage == "zeroed" else os.truncate(largest, 7 if damage == "cut" else 0)


def test_a_shard_from_before_that_was_synced_is_an_error_as_ever(sink, folder, new_boot):
    write(sink, range(4))
    write(sink, range(4, 8), fsync="never")
    os.truncate(body(shards(folder)[0]), 7)
    new_boot()
    with pytest.raises(SinkConflictError, match="the manifest says that it has"):
        Drain(sink)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeroed"])
def test_with_commit_a_damaged_shard_is_an_error_whatever_was_started(sink, folder, new_boot, damage):
    write(sink, range(12))
    DAMAGES[damage](body(shards(folder)[1]))
    new_boot()
    if damage == "zeroed":  # its size is right: for that there is `verify`
        assert not verify_sink(sink).ok
        return
    with pytest.raises(SinkConflictError, match="interlock verify"):
        Drain(sink)


@pytest.mark.parametrize("lost", [(0, 300), (150, 420), (10, 11), (0, None)])
def test_lines_of_the_manifest_that_a_power_cut_took_are_dropped_with_their_shards(sink, folder, new_boot, rows, lost):
    write(sink, range(12), fsync="never")
    zero(folder / "_interlock/manifest.jsonl", *lost)
    new_boot()
    assert read_status(sink).rows_committed < 12
    assert not verify_sink(sink).ok
    with pytest.warns(RuntimeWarning, match="its line of the manifest is lost"):
        assert finish(sink) >= 4
    assert rows(sink) == {one: 1.5 * one for one in range(12)}
    assert verify_sink(sink).ok


def test_a_torn_end_of_the_manifest_is_cut_and_its_shard_is_not_believed(sink, folder, new_boot, rows):
    write(sink, range(12), fsync="never")
    manifest = folder / "_interlock/manifest.jsonl"
    os.truncate(manifest, manifest.stat().st_size - 30)
    new_boot()
    with pytest.warns(RuntimeWarning, match="its line of the manifest is lost"):
        assert finish(sink) == 4
    assert rows(sink) == {one: 1.5 * one for one in range(12)}
    assert verify_sink(sink).ok


def test_with_commit_a_line_before_the_last_that_is_damaged_is_an_error(sink, folder, new_boot):
    write(sink, range(12))
    zero(folder / "_interlock/manifest.jsonl", 0, 100)
    new_boot()
    with pytest.raises(SinkConflictError, match="is damaged"):
        Drain(sink)


def test_a_note_that_is_damaged_vouches_for_nothing(sink, folder, rows):
    write(sink, range(12), fsync="never")
    (folder / "_interlock/unsynced.json").write_bytes(b"{")
    zero(body(shards(folder)[2]))
    with pytest.warns(RuntimeWarning, match="do not match their hash"):
        assert finish(sink) == 4
    assert len(rows(sink)) == 12


def test_a_process_that_dies_loses_nothing_without_syncing(sink, folder, rows):
    """As `kill -9` leaves it: a shard without its line, in the same boot, is adopted as ever."""
    write(sink, range(12), fsync="never")
    manifest = folder / "_interlock/manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert finish(sink, fsync="never") == 0
    assert len(rows(sink)) == 12


def test_a_shard_without_its_line_that_nobody_synced_is_synced_before_it_counts(sink, folder, synced):
    write(sink, range(12), fsync="never")
    manifest = folder / "_interlock/manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    synced.clear()
    with Drain(sink) as drain:
        assert len(drain.committed) == 12
    names = [name.removesuffix("/output.npy") for name in synced]
    last_line = len(names) - 1 - names[::-1].index(str(manifest))
    assert names.index(str(shards(folder)[2])) < last_line


@pytest.mark.parametrize("command", [merge_sink, compact_sink])
def test_merging_syncs_what_nobody_did(sink, folder, new_boot, command, rows, synced):
    for rank in (0, 1):
        write(sink, range(6 * rank, 6 * rank + 6), fsync="never", rank=(rank, 2))
    assert (folder / "_interlock/unsynced-r00001.json").exists()
    synced.clear()
    command(sink)
    assert read_status(sink).fsync == "commit"
    assert any("-r00001-" in name for name in synced)
    new_boot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert finish(sink) == 0
    assert len(rows(sink)) == 12


def test_each_rank_answers_for_its_own_shards(sink, folder, new_boot, rows):
    write(sink, range(6), rank=(0, 2))
    write(sink, range(6, 12), fsync="never", rank=(1, 2))
    (hurt,) = [path for path in shards(folder) if "-r00001-000000" in path.name]
    os.truncate(body(hurt), 7)
    new_boot()
    with pytest.warns(RuntimeWarning, match="-r00001-000000"):
        assert finish(sink) == 4
    assert rows(sink) == {one: 1.5 * one for one in range(12)}


def test_restart_forgets_what_was_not_synced(sink, folder, new_boot, rows):
    write(sink, range(12), fsync="never")
    os.truncate(body(shards(folder)[0]), 7)
    new_boot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert finish(sink, restart=True) == 12
    assert read_status(sink).fsync == "commit"
    assert len(rows(sink)) == 12


def test_another_policy_is_refused(sink):
    with pytest.raises(UsageError, match="fsync is 'always'; use commit or never"):
        Drain(sink, fsync="always")  # type: ignore[arg-type]


# ---------------------------------------------------------------- a real one

SHUTDOWN, WITHOUT_ITS_LOG = 0x8004587D, 2
"""The call that ext4 and XFS have for their own tests: what is not on the storage now never gets there."""


@pytest.fixture
def cut_disk(tmp_path):
    """A folder on an ext4 file system of its own, and what cuts its power and mounts it again."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def cut() -> None:
        descriptor = os.open(place, os.O_RDONLY)
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_ITS_LOG))
        os.close(descriptor)

    def start() -> None:
        run("umount", str(place))
        run("mount", "-o", "loop", str(image), str(place))

    if not shutil.which("mkfs.ext4") or os.geteuid():
        pytest.skip("there is no mkfs.ext4 here, or mounting is not allowed")
    with image.open("wb") as file:
        file.truncate(32 << 20)
    run("mkfs.ext4", "-q", str(image))
    run("mount", "-o", "loop", str(image), str(place))
    yield place, cut, start
    subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.parametrize("scheme", ["npy", "parquet"])
@pytest.mark.parametrize("fsync", ["commit", "never"])
def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(cut_disk, new_boot, scheme, fsync, rows):
    place, cut, start = cut_disk
    sink = f"{scheme}:{place}/out"
    drain = Drain(sink, shard_bytes=64, fsync=fsync)
    for first in range(0, 40, 4):
        drain.put(np.arange(first, first + 4), np.arange(first, first + 4) * 1.5)
    drain.flush()
    assert len(drain.committed) == 40
    drain.put([40], np.array([60.0]))
    cut()
    with pytest.raises(SinkError, match="Input/output error"):
        drain.close()
    start()
    new_boot()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if fsync == "commit" else "ignore")
        assert finish(sink, 41) == (1 if fsync == "commit" else 41)
    assert rows(sink) == {one: 1.5 * one for one in range(41)}
    assert verify_sink(sink).ok
