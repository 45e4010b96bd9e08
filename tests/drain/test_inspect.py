"""Status and verify: what they say of a sink, whole or damaged."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from interlock.drain import Drain, open_sink, read_status, verify_sink
from interlock.drain._digests import digest_of
from interlock.drain._files import seal, size_of, unseal
from interlock.drain._idcodes import encode_ids
from interlock.drain._manifest import ShardRecord
from interlock.errors import SinkConflictError


@pytest.fixture
def written(sink, folder):
    with Drain(sink, total=10, fingerprint={"model": "m"}, shard_bytes=100) as drain:
        drain.put(range(8), {"x": np.arange(16.0).reshape(8, 2), "y": np.arange(8)})
    return sorted(path for path in folder.iterdir() if path.name.startswith("part-"))


def test_status_tells_how_far_a_sink_is(sink, written):
    status = read_status(sink).as_dict()
    assert json.loads(json.dumps(status)) == status
    run = status.pop("run")
    size = status.pop("bytes")
    assert all(path.name.startswith(f"part-{run[:8]}-") for path in written)
    assert size > 0
    assert status == {
        "sink": sink, "rows_total": 10, "rows_committed": 8, "rows_failed": 0, "rows_missing": 2,
        "shards": len(written), "fingerprint": {"model": "m"}, "is_written": False, "failures": [],
        "ids": "int", "fsync": "commit", "ranks": [{"rank": 0, "rows": 8, "shards": len(written), "is_written": False}],
    }  # fmt: skip


def test_verify_finds_a_whole_sink_whole(sink, written):
    report = verify_sink(sink)
    assert report.as_dict() == {
        "sink": sink, "ok": True, "rows": 8, "shards": len(written), "problems": [], "duplicates": 0, "missing": 2,
    }  # fmt: skip


def test_one_flipped_byte_anywhere_in_a_shard_is_found_and_the_shard_named(sink, written):
    shard = written[1]
    for file in sorted(shard.iterdir()) if shard.is_dir() else [shard]:
        content = bytearray(file.read_bytes())
        for at in (0, len(content) // 2, len(content) - 1):
            content[at] ^= 0x10
            file.write_bytes(content)
            report = verify_sink(sink)
            assert not report.ok
            assert report.problems == ((shard.name, "its bytes do not match their hash"),)
            content[at] ^= 0x10
        file.write_bytes(content)
    assert verify_sink(sink).ok


def test_a_cut_shard_is_found(sink, written):
    shard = written[0]
    file = shard / "x.npy" if shard.is_dir() else shard
    file.write_bytes(file.read_bytes()[:-1])
    ((name, what),) = verify_sink(sink).problems
    assert name == shard.name
    assert "the manifest says" in what


def test_an_extra_file_in_a_shards_folder_is_found(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put([1], np.zeros(1))
    (shard,) = [path for path in (tmp_path / "out").iterdir() if path.name.startswith("part-")]
    (shard / "extra").write_bytes(b"")
    assert verify_sink(sink).problems == ((shard.name, "its bytes do not match their hash"),)


def test_the_same_rows_in_two_recorded_shards_are_duplicates(sink, folder, written):
    """As after a repair by hand: both shards are whole, hashed and recorded."""
    twin = written[0].with_name(written[0].name.replace("-000000", "-000099"))
    shutil.copytree(written[0], twin) if twin.suffix == "" else shutil.copy(written[0], twin)
    ids = open_sink(sink)[0].read_shard(twin).ids
    record = ShardRecord(twin.name, len(ids), size_of(twin), digest_of(twin), encode_ids(ids))
    with (folder / "_interlock/manifest.jsonl").open("ab") as file:
        file.write(record.line())
    report = verify_sink(sink)
    assert not report.ok
    assert report.duplicates == len(ids)
    assert report.problems[0][0] == twin.name
    assert report.missing == 2


def test_ids_that_are_not_those_of_the_manifest_are_found(sink, folder, written):
    file = folder / "_interlock/manifest.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    record = unseal(lines[0])
    assert record is not None
    record["ids"] = encode_ids(np.arange(100, 100 + record["rows"]))
    file.write_bytes(seal(record) + b"".join(lines[1:]))
    assert (written[0].name, "its ids are not those in the manifest") in verify_sink(sink).problems


def test_a_live_writer_is_no_problem(sink):
    with Drain(sink, total=3) as drain:
        drain.put([1], np.zeros(1))
        drain.flush()
        drain.put([2], np.zeros(1))
        assert verify_sink(sink).ok
        status = read_status(sink)
        assert status.is_written
        assert status.rows_committed == 1


@pytest.mark.parametrize("look", [read_status, verify_sink])
def test_where_nothing_was_written_there_is_nothing_to_look_at(sink, folder, look):
    with pytest.raises(SinkConflictError, match="there is nothing at"):
        look(sink)
    assert not folder.exists()


def test_a_parquet_folder_reads_as_a_plain_dataset_with_the_declared_types(tmp_path):
    with Drain(f"parquet:{tmp_path / 'out'}") as drain:
        drain.put(
            [1, 2],
            {
                "scalar": np.zeros(2, np.uint8),
                "vector": np.zeros((2, 3), np.float16),
                "map": np.zeros((2, 4, 5), np.float32),
                "flag": np.ones(2, np.bool_),
            },
        )
    schema = ds.dataset(tmp_path / "out", format="parquet").schema
    assert schema.field("id").type == pa.int64()
    assert schema.field("scalar").type == pa.uint8()
    assert schema.field("vector").type.equals(pa.list_(pa.field("element", pa.float16()), 3))
    assert schema.field("map").type == pa.fixed_shape_tensor(pa.float32(), (4, 5))
    assert schema.field("flag").type == pa.bool_()
    assert schema.metadata[b"interlock.run"].decode() == read_status(f"parquet:{tmp_path / 'out'}").run
