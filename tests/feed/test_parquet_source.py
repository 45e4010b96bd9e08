"""Parquet as a source: rows of one file or of many, ids, nulls, and the row groups that are kept."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import open_source as open_typed
from interlock.feed.sources._row_groups import DecodedGroup, GroupCache


def open_source(place, **options) -> Any:
    """Open a source whose optional methods mypy need not know."""
    return open_typed(place, **options)


def _write(path, table, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table) if isinstance(table, dict) else table, path, **options)


def test_one_column_is_an_array_and_several_are_a_dict(tmp_path):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(20, dtype=np.float32)), 2)
    _write(tmp_path / "a.parquet", {"x": vectors, "y": pa.array(range(10)), "text": ["a"] * 10}, row_group_size=3)
    source = open_source(tmp_path / "a.parquet")
    assert source[4]["x"].tolist() == [8.0, 9.0]
    assert source[4]["x"].dtype == np.float32
    assert source[4]["y"] == 4
    assert "text" not in source[4]
    alone = open_source(tmp_path / "a.parquet", columns=["x"])
    assert alone[9].tolist() == [18.0, 19.0]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_every_type_of_number_comes_out_as_written(tmp_path, dtype):
    values = (np.arange(7) % 2).astype(dtype)
    _write(tmp_path / "a.parquet", {"x": pa.array(values)})
    source = open_source(tmp_path / "a.parquet")
    out = np.empty(7, dtype)
    source.read_into(range(7), out)
    assert np.array_equal(out, values)
    assert source[0].dtype == np.dtype(dtype)


def test_lists_of_lists_become_arrays_of_two_axes(tmp_path):
    values = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    _write(tmp_path / "a.parquet", {"x": pa.array(values.tolist(), pa.list_(pa.list_(pa.int32(), 2)))})
    source = open_source(tmp_path / "a.parquet")
    assert np.array_equal(np.stack([source[index] for index in range(4)]), values)


def _tensors(values, **options):
    flat = pa.array(values.reshape(-1))
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:], **options)
    lists = pa.FixedSizeListArray.from_arrays(flat, values[0].size).cast(kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, lists)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "int64"])
def test_tensors_become_arrays_of_their_shape(tmp_path, dtype, kind):
    values = (np.arange(120) % 5).astype(dtype).reshape(5, 2, 3, 4)
    table = pa.table({"x": _tensors(values), "turned": _tensors(values, permutation=[2, 0, 1])})
    if kind == "parquet":
        _write(tmp_path / "a.parquet", table, row_group_size=2)
    else:
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table, 2)
    source = open_source(tmp_path / f"a.{kind}")
    assert np.array_equal(np.stack([source[index]["x"] for index in range(5)]), values)
    turned = values.transpose(0, 3, 1, 2)
    assert np.array_equal(np.stack([source[index]["turned"] for index in range(5)]), turned)
    with Feed(source, batch_size=5) as feed:
        (batch,) = feed
    assert np.array_equal(batch["x"], values)
    assert np.array_equal(batch["turned"], turned)


def test_a_tensor_that_is_null_fails_at_its_own_row(tmp_path):
    kind = pa.fixed_shape_tensor(pa.int32(), (1, 2))
    lists = pa.array([[1, 2], None, [3, None]], kind.storage_type)
    _write(tmp_path / "a.parquet", {"x": pa.ExtensionArray.from_storage(kind, lists)})
    source = open_source(tmp_path / "a.parquet")
    assert source[0].tolist() == [[1, 2]]
    for row in (1, 2):
        with pytest.raises(SampleError, match="null"):
            source[row]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_feed_of_a_parquet_folder_gives_the_rows_of_its_files_in_order(tmp_path, workers, shuffle):
    for part in range(3):
        rows = np.arange(part * 10, part * 10 + 10)
        _write(
            tmp_path / f"part-{part}.parquet", {"x": rows, "y": [[float(row)] * 3 for row in rows]}, row_group_size=4
        )
    _write(tmp_path / "_hidden.parquet", {"x": [99]})
    _write(tmp_path / "_staging" / "a.parquet", {"x": [99]})
    _write(tmp_path / ".temporary.parquet", {"x": [99]})
    with Feed(open_source(tmp_path), batch_size=7, workers=workers, shuffle=shuffle, ids=True) as feed:
        seen: dict[int, tuple[int, list[float]]] = {}
        for ids, batch in feed:
            seen.update(zip(ids.tolist(), zip(batch["x"].tolist(), batch["y"].tolist(), strict=True), strict=True))
    assert seen == {row: (row, [float(row)] * 3) for row in range(30)}


def test_nulls_and_ragged_lists_fail_at_their_row_and_name_the_column(tmp_path):
    _write(
        tmp_path / "a.parquet",
        {"x": [1, None, 3, 4, 5], "y": [[1, 2], [1, 2], None, [1, 2, 3], [1, None]]},
    )
    source = open_source(tmp_path / "a.parquet")
    assert source[0]["y"].tolist() == [1, 2]
    reasons = {}
    for row in range(1, 5):
        with pytest.raises(SampleError) as caught:
            source[row]
        assert caught.value.index == row
        reasons[row] = caught.value.why
    assert reasons == {
        1: "column 'x' is null there",
        2: "column 'y' is null there",
        3: "column 'y' has a list of 3 there, the first row one of 2",
        4: "column 'y' has a null or a list of another length inside its list there",
    }
    with pytest.raises(SampleError, match="cannot read row 1 of"):
        source.read_into(range(5), {"x": np.empty(5, np.int64), "y": np.empty((5, 2), np.int64)})


def test_a_null_costs_its_own_row_only(tmp_path):
    _write(tmp_path / "a.parquet", {"x": [None, 1.5, 2.5, float("nan")]})
    with Feed(open_source(tmp_path / "a.parquet"), batch_size=4, ids=True, on_error="skip") as feed:
        batches = [(ids.tolist(), batch.tolist()) for ids, batch in feed]
        failed = [(one.index, one.reason) for one in feed.failures]
    assert batches[0][0] == [1, 2, 3]
    assert batches[0][1][:2] == [1.5, 2.5]
    assert failed[0][0] == 0
    assert "column 'x' is null" in failed[0][1]


@pytest.mark.parametrize(("ids", "kind"), [([7, 3, 5], int), (["b", "a", "c"], str)])
def test_an_id_column_names_the_rows_and_is_no_sample(tmp_path, ids, kind):
    _write(tmp_path / "a.parquet", {"key": ids[:2], "x": [1.0, 2.0]})
    _write(tmp_path / "b.parquet", {"key": ids[2:], "x": [3.0]})
    source = open_source(tmp_path, id_column="key")
    assert [source.id_of(index) for index in range(3)] == ids
    assert isinstance(source.id_of(0), kind)
    assert source[2] == 3.0


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["a", "b", "a"], "has 'a' more than once: in rows 0 and 2"),
        ([1, 2, None], "is null in row 2"),
        ([1.0, 2.0, 3.0], "is double"),
        (pa.array([1, 2, 2**64 - 1], pa.uint64()), "does not fit 64 signed bits"),
    ],
)
def test_ids_that_are_not_ids_are_refused(tmp_path, ids, text):
    _write(tmp_path / "a.parquet", {"key": ids, "x": [1, 2, 3]})
    with pytest.raises(SourceError, match=text):
        open_source(tmp_path / "a.parquet", id_column="key")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["text"]}, "column 'text' of .* is not of numbers: its type is string"),
        ({"columns": ["nmber"]}, "no column 'nmber': .*did you mean 'number'"),
        ({"columns": ["number", "number"]}, "twice"),
        ({"columns": []}, "or none"),
        ({"id_column": "missing"}, "no column 'missing'"),
        ({"id_column": "number"}, "no column of numbers"),
        ({"image_size": (2, 2)}, "--image-size does not go with"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_by_name(tmp_path, options, text):
    _write(tmp_path / "a.parquet", {"number": [1], "text": ["a"]})
    with pytest.raises(UsageError, match=text):
        open_source(tmp_path / "a.parquet", **options)


def test_parquet_files_that_disagree_are_refused(tmp_path):
    _write(tmp_path / "a.parquet", {"x": [1]})
    _write(tmp_path / "b.parquet", {"x": [1.5]})
    with pytest.raises(SourceError, match=r"'x' differs between files: it is int64 in .*a\.parquet and double in"):
        open_source(tmp_path)


@pytest.mark.parametrize(("content", "text"), [(b"PAR1 no", "cannot be read as Parquet"), (b"", "cannot be read")])
def test_a_file_that_is_not_parquet_is_refused(tmp_path, content, text):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(SourceError, match=text):
        open_source(tmp_path / "a.parquet")


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    _write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
    with pytest.raises(SourceError, match="no rows"):
        open_source(tmp_path / "a.parquet")


def test_a_damaged_row_group_fails_at_its_rows(tmp_path):
    path = tmp_path / "a.parquet"
    _write(path, {"x": np.random.default_rng(0).normal(size=4000)}, row_group_size=2000, compression="zstd")
    source = open_source(path)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * 200)
    source[0]
    with pytest.raises(SampleError, match=r"row group 1 of .* cannot be read"):
        source[2000]


def test_the_fingerprint_of_parquet_follows_columns_and_bytes(tmp_path):
    _write(tmp_path / "a.parquet", {"x": [1, 2], "y": [1, 2]})
    _write(tmp_path / "b.parquet", {"x": [1, 3], "y": [1, 2]})
    first = open_source(tmp_path / "a.parquet").fingerprint()
    assert first == open_source(tmp_path / "a.parquet").fingerprint()
    assert first != open_source(tmp_path / "b.parquet").fingerprint()
    assert first != open_source(tmp_path / "a.parquet", columns=["x"]).fingerprint()
    assert first != open_source(tmp_path / "a.parquet", id_column="x").fingerprint()


def test_a_row_group_that_two_threads_want_is_decoded_once():
    calls = []
    inside, go = threading.Event(), threading.Event()

    def read(number):
        calls.append(number)
        inside.set()
        assert go.wait(10)
        return DecodedGroup({"x": np.zeros(1)})

    cache = GroupCache(read)
    threads = [threading.Thread(target=cache.get, args=(3,)) for _ in range(2)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(10)
    assert calls == [3]


def test_only_a_few_row_groups_are_kept():
    calls = []

    def read(number):
        calls.append(number)
        return DecodedGroup({"x": np.zeros(1)})

    cache = GroupCache(read)
    for number in range(8):
        cache.get(number)
    cache.get(0)
    cache.get(8)  # takes the place of the one used longest ago: 1
    cache.get(0)
    cache.get(1)
    assert calls == [*range(9), 1]
    assert len(cache._entries) == 8


def test_large_row_groups_are_kept_by_bytes():
    big = np.broadcast_to(np.uint8(0), (300 << 20,))
    cache = GroupCache(lambda _: DecodedGroup({"x": big}))
    for number in range(3):
        cache.get(number)
    assert len(cache._entries) == 1
