"""Packed tokens: every token once, in order, with the bounds of its document."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import InterlockError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import PackedTokens as TypedSource


def PackedTokens(*given_ones, **options) -> Any:  # noqa: N802 - samples are of any type
    return TypedSource(*given_ones, **options)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 11), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_token_is_once_in_a_block_with_document_and_position(lengths, length, flat):
    documents = [np.arange(count, dtype=np.uint16) + 100 * number for number, count in enumerate(lengths)]
    if not sum(lengths):
        return
    tokens = np.concatenate(documents) if flat else documents
    packed = PackedTokens(tokens, length=length, lengths=lengths, tail="pad", padding=7)
    found = []
    for index in range(len(packed)):
        block = packed[index]
        document = 0
        for token, segment, position in zip(block["tokens"], block["segment"], block["position"], strict=True):
            if segment:
                assert segment in (document, document + 1)
                assert (segment == document) == (position > 0 and document > 0)
                document = segment
                assert int(token) % 100 == position
                found.append(int(token))
            else:
                assert (int(token), int(position), index) == (7, 0, len(packed) - 1)
    assert found == np.concatenate(documents).tolist()


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_reads_blocks_of_a_mapped_file_in_bulk(tmp_path, tail, workers):
    np.save(tmp_path / "t.npy", np.arange(1, 101, dtype=np.uint32))
    source = PackedTokens(tmp_path / "t.npy", length=8, tail=tail)
    with Feed(source, batch_size=5, workers=workers, shuffle=True, ids=True) as feed:
        rows = {int(number): row.tolist() for ids, batch in feed for number, row in zip(ids, batch, strict=True)}
    assert len(rows) == len(source) == (12 if tail == "drop" else 13)
    flat = [token for number in sorted(rows) for token in rows[number]]
    assert flat[:100] == list(range(1, 97 if tail == "drop" else 101))
    assert set(flat[100:]) <= {0}


def test_a_feed_gives_the_bounds_of_documents_in_bulk():
    source = PackedTokens(np.arange(20), length=8, lengths=[5, 9, 6])
    with Feed(source, batch_size=2) as feed:
        (batch,) = list(feed)
    assert batch["tokens"].ravel().tolist() == list(range(16))
    assert batch["segment"].tolist() == [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 1, 2, 2]]
    assert batch["position"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [3, 4, 5, 6, 7, 8, 0, 1]]


def test_a_pickled_copy_maps_the_file_again_and_carries_no_token(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(100_000))
    state = pickle.dumps(PackedTokens(tmp_path / "t.npy", length=10))
    assert len(state) < 2000
    assert pickle.loads(state)[5].tolist() == list(range(50, 60))  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("tokens", "options", "kind", "message"),
    [
        (np.arange(5), {"length": 0}, UsageError, "length 0"),
        (np.arange(5), {"length": 2, "tail": "cut"}, UsageError, "tail 'cut'"),
        (np.arange(5), {"length": 6}, SourceError, "5 tokens fill no block of 6"),
        (np.arange(6).reshape(2, 3), {"length": 2}, UsageError, r"shape \(2, 3\)"),
        (np.arange(5), {"length": 2, "lengths": [2, 2]}, SourceError, "add up to 4, and there are 5 tokens"),
        (np.arange(5), {"length": 2, "lengths": [6, -1]}, UsageError, "none negative"),
        ([np.arange(5)], {"length": 2}, UsageError, "documents need lengths, one each: none are given"),
        ([np.arange(5)], {"length": 2, "lengths": [2, 3]}, UsageError, "2 for 1 documents"),
        ("/nowhere/t.npy", {"length": 2}, SourceError, "cannot map /nowhere/t.npy"),
    ],
)
def test_what_cannot_be_packed_is_refused(tokens, options, kind, message):
    with pytest.raises(kind, match=message):
        PackedTokens(tokens, **options)


def test_a_document_that_is_not_as_long_as_said_is_named():
    source = PackedTokens([np.arange(3), np.arange(9), np.arange(2)], length=7, lengths=[3, 9, 4])
    assert source[0]["tokens"].tolist() == [0, 1, 2, 0, 1, 2, 3]
    with pytest.raises(InterlockError, match=r"document 2 is not what its length says: it has shape \(2,\)"):
        source[1]


def test_a_pickled_array_is_never_loaded(tmp_path):
    np.save(tmp_path / "t.npy", np.array([1, "a"], dtype=object))
    with pytest.raises(SourceError, match="cannot map"):
        PackedTokens(tmp_path / "t.npy", length=1)


def test_an_index_outside_is_refused():
    source = PackedTokens(np.arange(10), length=3)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            source[index]
    with pytest.raises(IndexError):
        source.read_into([2, 3], np.empty((2, 3), int))
