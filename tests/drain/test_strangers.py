"""Manifests and shards that nobody of ours wrote: refused, in bounded time and memory, and nothing else is touched."""

from __future__ import annotations

import base64
import json
import struct
import tarfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interlock.drain import Drain, open_sink, read_committed
from interlock.drain._files import seal
from interlock.drain._idcodes import _packed, parse_code
from interlock.drain._manifest import ShardRecord, gone_line
from interlock.errors import SinkConflictError, SinkError, UsageError

NESTED = b"[" * 100_000


def written(sink, folder):
    """Write one shard of a row; return its path and its manifest."""
    with Drain(sink) as drain:
        drain.put([1], {"x": np.ones(1)})
    (shard,) = folder.glob("part-*")
    return shard, folder / "_interlock/manifest.jsonl"


def claim(shard, rows):
    """Return the line of a shard that is said to hold so many rows."""
    body = base64.b64encode(_packed("r", 0, np.array([rows - 1], "<u4"))).decode()
    return ShardRecord(shard, rows, rows, "", f"set1:{body}").line()


def test_rows_that_do_not_lie_there_take_no_memory(sink, folder):
    shard, manifest = written(sink, folder)
    manifest.write_bytes(claim(shard.name, 10_000_000))
    with pytest.raises(SinkConflictError, match=r"the manifest says that it has 10,000,000 rows; .*interlock verify"):
        read_committed(sink)
    manifest.write_bytes(claim(shard.name.replace("000000", "000007"), 10_000_000))
    with pytest.raises(SinkError, match="cannot read"):
        read_committed(sink)


def test_a_manifest_removes_nothing_but_shards(sink, folder):
    shard, manifest = written(sink, folder)
    mine = folder / f"mine{shard.suffix}"
    mine.mkdir() if shard.is_dir() else mine.write_bytes(b"mine")
    manifest.write_bytes(manifest.read_bytes() + gone_line([mine.name]) + seal({"gone": 5}))
    with Drain(sink):
        pass
    assert mine.exists()


def test_a_code_of_more_rows_than_there_are_numbers_is_refused():
    code = base64.b64encode(struct.pack("<cBqQ", b"r", 0x81, 0, 1 << 63) + zlib.compress(bytes(64))).decode()
    with pytest.raises(UsageError, match="a code of ids cannot be read"):
        parse_code(f"set1:{code}", 1 << 70)


def test_numbers_that_are_none_are_a_damaged_line(sink, folder):
    shard, manifest = written(sink, folder)
    manifest.write_bytes(seal({"shard": shard.name, "rows": float("inf"), "bytes": 1, "sha256": "", "ids": "str"}))
    with pytest.raises(SinkConflictError, match="is damaged"):
        read_committed(sink)


@pytest.mark.parametrize("scheme", ["npy", "safetensors", "webdataset", "zarr"])
def test_json_that_is_nested_too_deep_is_a_damaged_shard(tmp_path, scheme):
    sink = f"{scheme}:{tmp_path / 'out'}"
    shard, _ = written(sink, tmp_path / "out")
    if scheme == "npy":
        (shard / "shard.json").write_bytes(NESTED)
    elif scheme == "zarr":
        (shard / "zarr.json").write_bytes(NESTED)
    elif scheme == "safetensors":
        shard.write_bytes(len(NESTED).to_bytes(8, "little") + NESTED)
    else:
        with tarfile.open(shard, "w") as tar:
            member = tarfile.TarInfo("__interlock__")
            member.size = len(NESTED)
            (tmp_path / "nested").write_bytes(NESTED)
            with (tmp_path / "nested").open("rb") as file:
                tar.addfile(member, file)
    with pytest.raises(UsageError, match="is no whole"):
        open_sink(sink)[0].read_shard(shard)


def test_a_run_record_that_is_nested_too_deep_is_damaged(sink, folder):
    written(sink, folder)
    (folder / "_interlock/run.json").write_bytes(NESTED)
    with pytest.raises(SinkConflictError, match="it is damaged"):
        Drain(sink)


def test_strings_without_a_place_in_a_safetensors_file_are_a_damaged_shard(tmp_path):
    header = {
        "id.offsets": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]},
        "id": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    }
    text = json.dumps(header).encode()
    shard = tmp_path / "part.safetensors"
    shard.write_bytes(len(text).to_bytes(8, "little") + text + b"a")
    with pytest.raises(UsageError, match="is no whole safetensors file"):
        open_sink(f"safetensors:{tmp_path}")[0].read_shard(shard)


def test_a_member_that_leads_back_does_not_hang_the_reader(tmp_path):
    """Its size is negative, in the form that GNU tar uses for large numbers."""
    shard = tmp_path / "part.tar"
    first, member = tarfile.TarInfo("1.x.npy"), tarfile.TarInfo("2.x.npy")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" + (256**11 - 512).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    shard.write_bytes(first.tobuf() + bytes(header) + bytes(1024))
    with pytest.raises(UsageError, match=r"a member has -512 bytes|is no whole tar shard"):
        open_sink(f"webdataset:{tmp_path}")[0].read_shard(shard)


def test_a_key_that_fits_no_integer_is_a_damaged_shard(tmp_path):
    shard = tmp_path / "part.tar"
    told = json.dumps({"run": "", "rows": 1, "ids": "int"}).encode()
    mark = tarfile.TarInfo("__interlock__")
    mark.size = len(told)
    row = tarfile.TarInfo(f"{1 << 70}.x.npy")
    shard.write_bytes(row.tobuf() + mark.tobuf() + told.ljust(512, b"\0") + bytes(1024))
    with pytest.raises(UsageError, match="is no whole tar shard"):
        open_sink(f"webdataset:{tmp_path}")[0].read_shard(shard)


def test_ids_of_another_width_are_the_same_ids(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    shard, manifest = written(sink, tmp_path / "out")
    np.save(shard / "id.npy", np.array([1], np.int32))
    told = json.loads((shard / "shard.json").read_text())
    told["files"]["id.npy"] = (shard / "id.npy").stat().st_size
    (shard / "shard.json").write_text(json.dumps(told))
    manifest.write_bytes(b"")
    with Drain(sink) as drain:
        assert 1 in drain.committed


@pytest.mark.parametrize("ids", [[1, 2], ["a", "b"]], ids=["int", "str"])
def test_a_table_with_a_row_without_an_id_is_no_shard(tmp_path, ids):
    sink = f"parquet:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put(ids, {"x": np.ones(2)})
    (shard,) = (tmp_path / "out").glob("part-*")
    table = pq.read_table(shard)
    holed = pa.array([ids[0], None], table.schema.field("id").type)
    pq.write_table(table.set_column(0, "id", holed), shard)
    (tmp_path / "out/_interlock/manifest.jsonl").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="a row of it has no id"), Drain(sink) as drain:
        assert len(drain.committed) == 0
    assert not list((tmp_path / "out").glob("part-*"))
