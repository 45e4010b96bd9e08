"""Parquet and Arrow columns of lists of any length."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from interlock import Feed, Offsets, Padded
from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed.sources import ArrowSource, ParquetSource

TOKENS = [[1, 2, 3], [], [4], [5, 6], [], [7, 8, 9, 10], [11]]
PAIR = pa.list_(pa.float32(), 2)
BOXES = [[[row, step] for step in range(row % 3)] for row in range(7)]


def table(**more: Any) -> pa.Table:
    columns = {
        "tokens": pa.array(TOKENS, pa.list_(pa.uint16())),
        "boxes": pa.array(BOXES, pa.large_list(PAIR)),
        "label": pa.array(range(7), pa.int8()),
    }
    return pa.table(columns | more)


def write(path: Any, rows: pa.Table, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=3)
        return
    with pa.ipc.new_file(path, rows.schema) as file:
        for batch in rows.to_batches(max_chunksize=3):
            file.write_batch(batch)


def opened(kind: str, path: Any, **options: Any) -> Any:
    return ParquetSource(path, **options) if kind == "parquet" else ArrowSource(path, **options)


kinds = pytest.mark.parametrize("kind", ["parquet", "arrow"])


@kinds
@pytest.mark.parametrize("workers", [0, 3])
def test_a_feed_takes_lists_of_any_length_from_a_real_file(tmp_path, kind, workers):
    write(tmp_path / "a", table(), kind)
    source = opened(kind, tmp_path / "a", ragged=["tokens", "boxes"])
    ragged: Any = {"tokens": Padded(4), "boxes": Offsets(2)}
    batches = list(Feed(source, batch_size=4, ragged=ragged, workers=workers))
    padded = [row + [0] * (4 - len(row)) for row in TOKENS]
    assert [row for batch in batches for row in batch["tokens"]["values"].tolist()] == padded
    assert batches[0]["tokens"]["values"].dtype == np.uint16
    joined = [box for row in BOXES for box in row]
    assert [box for batch in batches for box in batch["boxes"]["values"].tolist()] == joined
    assert [batch["boxes"]["offsets"].tolist() for batch in batches] == [[0, 0, 1, 3, 3], [0, 1, 3, 3]]
    assert [label for batch in batches for label in batch["label"].tolist()] == list(range(7))


@kinds
def test_one_column_of_lists_is_an_array_of_its_own_length(tmp_path, kind):
    write(tmp_path / "a", table(), kind)
    source = opened(kind, tmp_path / "a", columns=["tokens"], ragged=["tokens"])
    assert [source[index].tolist() for index in range(7)] == TOKENS
    assert [pickle.loads(pickle.dumps(source))[5].tolist()] == [TOKENS[5]]  # noqa: S301 - made here
    assert source.fingerprint()["columns"] == ["tokens: uint16[any]"]


@kinds
def test_a_null_in_a_list_or_in_place_of_one_is_the_error_of_its_row(tmp_path, kind):
    tokens = pa.array([[1, 2], None, [3, None], [], [4], None, [5, 6, 7]], pa.list_(pa.uint16()))
    boxes = pa.array([[[1, 2]], [], [], [[1, None]], [None], [], [[5, 6], [7, 8]]], pa.list_(PAIR))
    write(tmp_path / "a", table(tokens=tokens, boxes=boxes), kind)
    source = opened(kind, tmp_path / "a", ragged=["tokens", "boxes"])
    feed = Feed(source, batch_size=7, ragged={"tokens": Offsets(3), "boxes": Offsets(2)}, on_error="skip")
    batch = next(iter(feed))
    assert batch["label"].tolist() == [0, 6]
    assert batch["tokens"]["values"].tolist() == [1, 2, 5, 6, 7]
    assert batch["boxes"]["values"].tolist() == [[1, 2], [5, 6], [7, 8]]
    reasons = {failure.index: failure.reason for failure in feed.failures}
    assert sorted(reasons) == [1, 2, 3, 4, 5]
    assert "column 'tokens' is null there" in reasons[1]
    assert "column 'tokens' has a null inside its list there" in reasons[2]
    assert "column 'boxes' has a null inside its list there" in reasons[3]
    assert "column 'boxes' has a null inside its list there" in reasons[4]


@kinds
def test_lists_that_the_feed_does_not_know_of_are_never_read_into_one_array(tmp_path, kind):
    write(tmp_path / "a", table(), kind)
    source = opened(kind, tmp_path / "a", columns=["tokens"], ragged=["tokens"])
    with pytest.raises(UsageError, match="lists of any length, which make no array"):
        source.read_into([0], np.zeros((1, 3), np.uint16))
    with pytest.raises(SampleError, match=r"sample 1: the array has shape .* or name it in ragged="):
        next(iter(Feed(source, batch_size=4)))


@kinds
@pytest.mark.parametrize(
    ("ragged", "message"),
    [
        (["label"], "column 'label' of .* is no list of any length"),
        (["deep"], "column 'deep' of .* has lists of lists"),
        (["token"], "has no column 'token': .*did you mean 'tokens'"),
        (["text"], "ragged column 'text' of .* is in no sample"),
    ],
)
def test_columns_that_are_no_lists_of_any_length_are_refused(tmp_path, kind, ragged, message):
    deep = pa.array([[[1]]] * 7, pa.list_(pa.list_(pa.int8())))
    write(tmp_path / "a", table(deep=deep, text=["a"] * 7), kind)
    with pytest.raises(SourceError, match=message):
        opened(kind, tmp_path / "a", ragged=ragged)
