"""Arrow IPC and Feather files: rows, record batches, and what is wrong with them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import ArrowSource as TypedSource
from interlock.feed.sources import ParquetSource, open_source
from interlock.feed.sources._columns import decode


def ArrowSource(*given, **options) -> Any:  # noqa: N802 - samples are of any type
    return TypedSource(*given, **options)


def table(rows=10, first=0):
    numbers = np.arange(first, first + rows)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 3).astype(np.float32)), 3)
    return pa.table({"x": numbers, "v": vectors, "name": [f"row {number}" for number in numbers]})


def write(path, content, *, batch_rows=4, stream=False):
    opened = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opened(path, content.schema) as writer:
        writer.write_table(content, max_chunksize=batch_rows)
    return path


@pytest.mark.parametrize("form", ["file", "stream", "feather"])
def test_rows_are_dicts_of_the_columns_of_numbers(tmp_path, form):
    path = tmp_path / "a.arrow"
    if form == "feather":
        pa.feather.write_feather(table(), path, compression="zstd", chunksize=4)
    else:
        write(path, table(), stream=form == "stream")
    source = ArrowSource(path)
    assert len(source) == 10
    assert list(source[7]) == ["x", "v"]
    assert source[7]["x"] == 7
    assert source[7]["v"].tolist() == [7, 7, 7]
    assert source.chunk_starts() == [0, 4, 8]
    for index in (-1, 10):
        with pytest.raises(IndexError):
            source[index]


def test_numbers_are_mapped_and_not_copied(tmp_path):
    before = pa.total_allocated_bytes()
    source = ArrowSource(write(tmp_path / "a.arrow", pa.table({"x": np.zeros(1 << 20)}), batch_rows=1 << 18))
    assert source[999_999] == 0
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("workers", [0, 3])
def test_a_feed_reads_runs_of_rows_over_the_edges_of_batches_and_files(tmp_path, workers):
    paths = [write(tmp_path / f"{part}.arrow", table(10, part * 10)) for part in range(3)]
    source = ArrowSource(paths, columns=["x"], id_column="name")
    with Feed(source, batch_size=7, workers=workers, ids=True) as feed:
        batches = [(ids.tolist(), batch.tolist()) for ids, batch in feed]
    assert [value for _, values in batches for value in values] == list(range(30))
    assert [name for names, _ in batches for name in names] == [f"row {number}" for number in range(30)]
    assert source.chunk_starts() == [0, 4, 8, 10, 14, 18, 20, 24, 28]


def test_batches_without_rows_are_no_chunks(tmp_path):
    empty = table(1).slice(0, 0)
    with pa.ipc.new_file(tmp_path / "a.arrow", empty.schema) as writer:
        for content in (empty, table(5).slice(0, 3), empty, table(5).slice(3)):
            for batch in content.to_batches() or [pa.RecordBatch.from_pylist([], schema=empty.schema)]:
                writer.write_batch(batch)
    source = ArrowSource(tmp_path / "a.arrow")
    assert source.chunk_starts() == [0, 3]
    assert [int(source[index]["x"]) for index in range(5)] == [0, 1, 2, 3, 4]


def test_a_null_fails_at_its_own_row(tmp_path):
    source = ArrowSource(write(tmp_path / "a.arrow", pa.table({"x": [1, None, 3, 4, 5]}), batch_rows=3))
    assert [int(source[index]) for index in (0, 2, 4)] == [1, 3, 5]
    with pytest.raises(SampleError, match=r"cannot read row 1 of .*column 'x' is null there") as caught:
        source[1]
    assert caught.value.index == 1


def test_lists_have_the_length_of_the_first_that_is_there(tmp_path):
    source = ArrowSource(write(tmp_path / "a.arrow", pa.table({"v": [None, [1, 2], [3], [4, 5]]}), batch_rows=1))
    assert source[3].tolist() == [4, 5]
    with pytest.raises(SampleError, match="a list of 1 there, the first row one of 2"):
        source[2]


@pytest.mark.parametrize("inner", [True, False])
def test_a_null_at_any_depth_of_lists_of_one_length_fails_at_its_own_row(tmp_path, inner):
    rows = [[[1, 2], [3, 4]], [[5, None], [7, 8]] if inner else [None, [7, 8]], [[9, 10], [11, 12]]]
    column = pa.array(rows, pa.list_(pa.list_(pa.float32(), 2), 2))
    source = ArrowSource(write(tmp_path / "a.arrow", pa.table({"v": column})))
    assert source[2].tolist() == [[9, 10], [11, 12]]
    with pytest.raises(SampleError, match="has a null or a list of another length inside its list there"):
        source[1]


def test_shuffled_reading_decodes_each_batch_once(tmp_path, monkeypatch):
    source = ArrowSource(write(tmp_path / "a.arrow", table(80), batch_rows=4))
    calls = []

    def counted(array, column):
        calls.append(column.name)
        return decode(array, column)

    monkeypatch.setattr("interlock.feed.sources._arrow.decode", counted)
    order = np.random.default_rng(0).permutation(80).tolist()
    assert [int(source[index]["x"]) for index in order] == order
    assert len(calls) == 20 * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["y"]}, "has no column 'y'"),
        ({"columns": ["name"]}, "is not of numbers"),
        ({"id_column": "v"}, "id column 'v'"),
    ],
)
def test_columns_that_are_not_there_or_do_not_fit_are_refused(tmp_path, options, message):
    with pytest.raises(SourceError, match=message):
        ArrowSource(write(tmp_path / "a.arrow", table()), **options)


def test_files_that_differ_are_refused(tmp_path):
    first = write(tmp_path / "a.arrow", pa.table({"x": [1]}))
    other = write(tmp_path / "b.arrow", pa.table({"x": [1.5]}))
    with pytest.raises(SourceError, match="column 'x' differs between files"):
        ArrowSource([first, other])


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1\0\0 and no more of it", b"something else entirely"])
def test_a_file_that_is_not_arrow_is_refused(tmp_path, content):
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.arrow (cannot be read as Arrow|has no rows)"):
        ArrowSource(tmp_path / "a.arrow")


def test_files_without_rows_are_refused(tmp_path):
    with pytest.raises(SourceError, match="has no rows"):
        ArrowSource(write(tmp_path / "a.arrow", table(1).slice(0, 0)))
    with pytest.raises(SourceError, match="no Arrow files are given"):
        ArrowSource([])
    with pytest.raises(SourceError, match="No such file"):
        ArrowSource(tmp_path / "none.arrow")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_pickled_copy_opens_the_file_again(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "arrow":
        source: Any = ArrowSource(write(path, table()), id_column="name")
    else:
        pa.parquet.write_table(table(), path, row_group_size=4)
        source = ParquetSource(path, id_column="name")
    source[5]
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy._rows._cache._entries == {}
    assert copy[5]["v"].tolist() == [5, 5, 5]
    assert copy.id_of(5) == "row 5"
    assert copy.chunk_starts() == [0, 4, 8]


def test_open_source_takes_arrow_files(tmp_path):
    path = write(tmp_path / "a.arrow", table())
    other = write(tmp_path / "cached", table(), stream=True)
    assert len(open_source(path, columns=["x"])) == 10
    assert len(open_source(f"arrow:{other}", id_column="name")) == 10
    with pytest.raises(UsageError, match=r"--image-size does not go with .* it is an Arrow file"):
        open_source(path, image_size=(1, 1))


def test_the_fingerprint_follows_the_bytes_and_not_the_place(tmp_path):
    first = ArrowSource(write(tmp_path / "a.arrow", table())).fingerprint()
    moved = ArrowSource(write(tmp_path / "b.arrow", table())).fingerprint()
    changed = ArrowSource(write(tmp_path / "c.arrow", table(10, 1))).fingerprint()
    assert first == moved != changed
