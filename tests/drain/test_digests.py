"""Digests of shards depend on every byte, name and size, and on nothing else."""

from __future__ import annotations

import hashlib
import threading

import pytest

from interlock.drain import _digests
from interlock.drain._digests import Digest, digest_of


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(_digests, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(_digests, "_READ_BYTES", 300)


@pytest.fixture
def shard(tmp_path):
    folder = tmp_path / "shard"
    folder.mkdir()
    for name, size in (("a.npy", 5_500), ("b.npy", 1_000), ("c.npy", 0), ("d.npy", 7)):
        (folder / name).write_bytes(bytes(at * 7 % 251 for at in range(size)))
    return folder


def test_of_a_file_it_is_what_sha256sum_says(tmp_path):
    content = bytes(at * 7 % 251 for at in range(5_500))
    (tmp_path / "x").write_bytes(content)
    assert digest_of(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_of_a_folder_it_is_what_the_description_says(shard):
    whole = hashlib.sha256()
    for file in sorted(shard.iterdir()):
        content = file.read_bytes()
        whole.update(f"{file.name} {len(content)}\n".encode())
        for start in range(0, max(1, len(content)), 1_000):
            whole.update(hashlib.sha256(content[start : start + 1_000]).digest())
    assert digest_of(shard) == whole.hexdigest()
    assert Digest(shard).wait() == whole.hexdigest()


@pytest.mark.parametrize("at", [0, 999, 1_000, 5_499])
def test_a_flipped_bit_shows(shard, at):
    before = digest_of(shard)
    content = bytearray((shard / "a.npy").read_bytes())
    content[at] ^= 1
    (shard / "a.npy").write_bytes(content)
    assert digest_of(shard) != before


def test_a_renamed_file_shows(shard):
    before = digest_of(shard)
    (shard / "c.npy").rename(shard / "c2.npy")
    assert digest_of(shard) != before


def test_bytes_that_moved_to_the_next_file_show(shard):
    before = digest_of(shard)
    first, second = (shard / "a.npy").read_bytes(), (shard / "b.npy").read_bytes()
    (shard / "a.npy").write_bytes(first[:5_000])
    (shard / "b.npy").write_bytes(first[5_000:] + second)
    assert digest_of(shard) != before


def test_a_thread_that_cannot_start_does_no_harm(shard, monkeypatch):
    """As while the interpreter ends."""
    expected = digest_of(shard)

    def refuse(_):
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert digest_of(shard) == expected


def test_what_the_storage_refuses_is_raised(shard, monkeypatch):
    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_digests._Part, "digest", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        digest_of(shard)


def test_a_part_that_a_thread_could_not_hash_is_raised_and_not_left_out(shard, monkeypatch):
    def refuse(_):
        raise MemoryError("no buffer")

    digest = Digest(shard)
    with monkeypatch.context() as patch:
        patch.setattr(_digests._Part, "digest", refuse)
        digest.start()
        for thread in digest._threads:
            thread.join()
    with pytest.raises(MemoryError, match="no buffer"):
        digest.wait()


def test_a_file_below_has_its_whole_path_in_the_digest(tmp_path):
    shard = tmp_path / "shard"
    (shard / "x/c").mkdir(parents=True)
    (shard / "x/c/0").write_bytes(b"rows")
    before = digest_of(shard)
    (shard / "x/c").rename(shard / "x/d")
    assert digest_of(shard) != before
