"""Digests of shards depend on every byte, name and size, and on nothing else."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import threading

import numpy as np
import pytest
import xxhash

from interlock import Drain
from interlock.drain import _digests, _publish, _shardfile, verify_sink
from interlock.drain._digests import ALGORITHM, Digest, check_known, digest_of, has_digest
from interlock.drain._manifest import Manifests, ShardRecord
from interlock.drain._shardfile import ShardFile, hash_here
from interlock.drain._storage import opened_storage
from interlock.errors import UsageError

HEAD, BLOCK = 200, 1_000
KINDS = ("sha256", "xxh3_128")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(_digests, "HEAD_BYTES", HEAD)
    monkeypatch.setattr(_digests, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(_digests, "_READ_BYTES", 300)
    monkeypatch.setattr(_digests, "_ALONE_BYTES", 0)


@pytest.fixture
def hashed():
    """What files of this thread tell while they are written."""
    yield hash_here()
    _shardfile._here.hashed = None


def _bytes(size):
    return bytes(at * 7 % 251 for at in range(size))


def _blocks(content, kind, *, is_folder):
    """The blocks that the description says a file has."""
    if kind == "sha256" and not is_folder:
        return [content]
    head = HEAD if kind == "xxh3_128" else 0
    blocks = [content[:head]] if head and content else []
    return blocks + [content[at : at + BLOCK] for at in range(head, len(content), BLOCK)] or [b""]


@pytest.fixture
def shard(tmp_path):
    folder = tmp_path / "shard"
    folder.mkdir()
    for name, size in (("a.npy", 5_500), ("b.npy", 1_000), ("c.npy", 0), ("d.npy", 7), ("e.npy", HEAD)):
        (folder / name).write_bytes(_bytes(size))
    return folder


def test_new_shards_get_the_fast_one_where_its_library_is():
    assert ALGORITHM == "xxh3_128"


def test_of_a_file_it_is_what_sha256sum_says(tmp_path):
    (tmp_path / "x").write_bytes(_bytes(5_500))
    assert Digest(tmp_path / "x", "sha256").wait() == f"sha256:{hashlib.sha256(_bytes(5_500)).hexdigest()}"


@pytest.mark.parametrize("size", [0, 1, HEAD - 1, HEAD, HEAD + 1, HEAD + BLOCK, 5_500])
def test_of_a_file_the_fast_one_is_what_the_description_says(tmp_path, size):
    (tmp_path / "x").write_bytes(_bytes(size))
    whole = xxhash.xxh3_128()
    for block in _blocks(_bytes(size), "xxh3_128", is_folder=False):
        whole.update(xxhash.xxh3_128_digest(block))
    assert digest_of(tmp_path / "x") == f"xxh3_128:{whole.hexdigest()}"


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_folder_it_is_what_the_description_says(shard, kind):
    new = getattr(hashlib if kind == "sha256" else xxhash, kind)
    whole = new()
    for file in sorted(shard.iterdir()):
        content = file.read_bytes()
        whole.update(f"{file.name} {len(content)}\n".encode())
        for block in _blocks(content, kind, is_folder=True):
            whole.update(new(block).digest())
    assert Digest(shard, kind).wait() == f"{kind}:{whole.hexdigest()}"
    started = Digest(shard, kind)
    started.start()
    assert started.wait() == f"{kind}:{whole.hexdigest()}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_digest_is_compared_with_one_of_its_own_kind(shard, kind):
    digest = Digest(shard, kind).wait()
    assert has_digest(shard, digest)
    (shard / "d.npy").write_bytes(b"1234567")
    assert not has_digest(shard, digest)


def test_a_digest_that_needs_a_library_that_is_not_there_is_no_damage(tmp_path, monkeypatch):
    with Drain(f"npy:{tmp_path}/out") as drain:
        drain.put([1, 2], np.ones((2, 3)))
    monkeypatch.setattr(_digests, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="xxhash is not installed; pip install xxhash"):
        verify_sink(f"npy:{tmp_path}/out")


@pytest.mark.parametrize("kind", ["blake9", ""])
def test_a_kind_that_nobody_knows_is_refused(kind):
    with pytest.raises(UsageError, match="not known; install a newer version"):
        check_known(f"{kind}:00")


def test_records_from_before_there_were_kinds_are_read():
    record = ShardRecord.from_json({"shard": "s", "rows": 1, "bytes": 8, "sha256": "ab", "ids": "x"})
    assert record.digest == "sha256:ab"


@pytest.mark.parametrize("step", [1, 7, HEAD, BLOCK, 10_000])
@pytest.mark.parametrize("size", [0, 1, HEAD, HEAD + BLOCK, 5_500])
def test_a_file_that_is_hashed_while_it_is_written_has_the_same_blocks(tmp_path, hashed, size, step):
    path = tmp_path / "x"
    with ShardFile(path) as file:
        for start in range(0, size, step):
            assert file.write(_bytes(size)[start : start + step]) == len(_bytes(size)[start : start + step])
    digest = Digest(path, known=hashed)
    digest.start()
    assert not digest._parts  # nothing is read again
    assert digest.wait() == digest_of(path)


def test_a_head_that_is_written_anew_counts(tmp_path, hashed):
    path = tmp_path / "x"
    file = io.BufferedWriter(ShardFile(path), 64)
    file.write(_bytes(3_000))
    file.seek(10)
    file.write(b"header")
    file.close()
    assert path.read_bytes()[10:16] == b"header"
    assert hashed[path].blocks() is not None
    assert Digest(path, known=hashed).wait() == digest_of(path)


@pytest.mark.parametrize("what", ["rewritten behind its head", "longer than what went through it"])
def test_a_file_that_was_written_in_another_way_is_read_again(tmp_path, hashed, what):
    path = tmp_path / "x"
    file = ShardFile(path)
    file.write(_bytes(3_000))
    if what.startswith("rewritten"):
        file.seek(HEAD - 1)
        file.write(b"xy")
    file.close()
    if what.startswith("longer"):
        with path.open("ab") as more:
            more.write(b"more")
    assert Digest(path, known=hashed).wait() == digest_of(path)


@pytest.mark.parametrize("scheme", ["npy", "parquet", "arrow", "webdataset", "safetensors", "zarr"])
def test_every_format_records_the_digest_of_what_is_in_its_files(tmp_path, scheme, monkeypatch):
    """Whatever of it was hashed on the way, read again, or moved there by the system."""
    read: list[int] = []
    real = _digests._Part.digest

    def counted(part):
        read.append(part.size_bytes)
        return real(part)

    monkeypatch.setattr(_digests._Part, "digest", counted)
    sink = f"{scheme}:{tmp_path}/out"
    with Drain(sink, shard_bytes=41_000) as drain:
        for start in range(0, 300, 100):
            rows = np.arange(start, start + 100, dtype=np.float32)[:, None] * np.ones(100, np.float32)
            drain.put(range(start, start + 100), rows)
    read_by_drain = sum(read)
    _, storage = opened_storage(sink)
    records = [record for _, record in Manifests(storage).records()]
    assert len(records) == 3
    assert all(digest_of(tmp_path / "out" / record.shard) == record.digest for record in records)
    assert verify_sink(sink).ok
    if scheme in ("npy", "parquet", "arrow", "webdataset"):
        assert read_by_drain < 0.1 * sum(record.size_bytes for record in records)


def test_shards_hashed_afterwards_are_the_same(tmp_path, monkeypatch):
    """As with a kind of digest that is not made on the way."""
    monkeypatch.setattr(_shardfile, "ALGORITHM", "sha256")
    real = _digests.Digest
    monkeypatch.setattr(_publish, "Digest", lambda path, known: real(path, "sha256", known))
    with Drain(f"npy:{tmp_path}/out") as drain:
        drain.put([1, 2], np.ones((2, 3)))
    _, storage = opened_storage(f"npy:{tmp_path}/out")
    (record,) = (record for _, record in Manifests(storage).records())
    assert record.digest.startswith("sha256:")
    assert verify_sink(f"npy:{tmp_path}/out").ok


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


_WITHOUT = """
import sys
sys.modules["xxhash"] = None
import numpy as np
from interlock import Drain
from interlock.drain import verify_sink
from interlock.errors import UsageError

mine, other = sys.argv[1:]
with Drain(mine) as drain:
    drain.put(range(3), np.ones((3, 100_000)))
assert verify_sink(mine).ok
try:
    verify_sink(other)
except UsageError as error:
    print(error)
with Drain(other) as drain:  # it goes on, and adds shards of the other kind
    drain.put([7], np.ones((1, 3)))
"""


@pytest.mark.parametrize("scheme", ["npy", "parquet"])
def test_without_the_library_a_drain_works_and_its_shards_are_read_with_it_and_mixed(tmp_path, scheme, monkeypatch):
    monkeypatch.undo()  # the other process has blocks of the usual size
    mine, other = f"{scheme}:{tmp_path / 'mine'}", f"{scheme}:{tmp_path / 'other'}"
    with Drain(other) as drain:
        drain.put([1, 2], np.ones((2, 3)))
    told = subprocess.run(
        [sys.executable, "-c", _WITHOUT, mine, other], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "pip install xxhash" in told
    for sink, kinds in ((mine, ["sha256"]), (other, ["sha256", "xxh3_128"])):
        _, storage = opened_storage(sink)
        found = sorted({record.digest.partition(":")[0] for _, record in Manifests(storage).records()})
        assert found == kinds
        assert verify_sink(sink).ok
