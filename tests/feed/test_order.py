"""Shuffles: bijective, uniform, the same everywhere, and how far chunks are from uniform."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import Feed, Shard
from interlock.errors import SourceError, UsageError
from interlock.feed._order import Bijection, ChunkShuffle, Indices, parse_shuffle
from interlock.feed._state import Share

LARGE = 5003  # above the length up to which a shuffle is a table


def order(length, *key):
    return Bijection(length, key).at(np.arange(length))


def chunked(sizes, window, *key):
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return ChunkShuffle(edges, window, key)


class Chunks:
    """Numbers in chunks of the given sizes."""

    def __init__(self, sizes, starts=None):
        self.sizes = sizes
        self.starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist() if starts is None else starts

    def __len__(self):
        return sum(self.sizes)

    def __getitem__(self, index):
        return np.int64(index)

    def chunk_starts(self):
        return self.starts


@given(length=st.integers(0, 20_000), seed=st.integers(0, 2**64), epoch=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_a_shuffle_has_every_index_once(length, seed, epoch):
    assert np.array_equal(np.sort(order(length, seed, epoch)), np.arange(length))


@pytest.mark.parametrize("length", [4095, 4096, 4097, 8191, 8192, 8193, 65_537, 300_000])
def test_a_shuffle_has_every_index_once_around_powers_of_two(length):
    assert np.array_equal(np.sort(order(length, 1, 2)), np.arange(length))


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    window=st.integers(1, 45),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_a_shuffle_by_chunks_has_every_index_once_and_mixes_no_more_than_its_window(sizes, window, seed):
    found = chunked(sizes, window, seed, 0).at(np.arange(sum(sizes)))
    assert np.array_equal(np.sort(found), np.arange(sum(sizes)))
    chunk_of = np.repeat(np.arange(len(sizes)), sizes)[found]
    first = {chunk: int(np.argmax(chunk_of == chunk)) for chunk in range(len(sizes))}
    turns = sorted(first, key=first.__getitem__)
    open_at_once = max(
        len(set(chunk_of[place:].tolist()) & set(chunk_of[: place + 1].tolist())) for place in range(len(found))
    )
    assert len(turns) == len(sizes)
    assert open_at_once <= window


def test_the_order_is_that_of_every_platform_and_version():
    """Values that were computed once: a state that is loaded elsewhere means the same samples."""
    far = [218228593054, 591153939412, 424279481648, 371524077579]
    assert order(10, 0, 0).tolist() == [2, 0, 4, 3, 7, 5, 6, 9, 1, 8]
    assert Bijection(10**12, (3, 7)).at(np.arange(4)).tolist() == far
    assert chunked([5, 3, 4], 2, 1, 0).at(np.arange(12)).tolist() == [0, 4, 5, 6, 3, 1, 2, 7, 9, 11, 8, 10]


def feistel(length, key, position):
    """The same in Python's integers, one at a time."""
    digest = hashlib.blake2b(repr((length, *key)).encode(), digest_size=64, person=b"interlock.order1").digest()
    bits = (length - 1).bit_length()
    value = position
    while True:
        widths = bits - bits // 2, bits // 2
        left, right = divmod(value, 1 << widths[1])
        for place in range(0, 64, 8):
            mixed = (right ^ int.from_bytes(digest[place : place + 8], "little")) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 32) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ mixed >> 64 - widths[0]
            widths = widths[1], widths[0]
        value = left << widths[1] | right
        if value < length:
            return value


@pytest.mark.parametrize("length", [4097, 5000, 2**20, 10**9, 2**61 + 1])
def test_numpy_computes_what_integers_without_bounds_give(length):
    places = [0, 1, 77, length // 2, length - 1]
    expected = [feistel(length, (5, 6), place) for place in places]
    assert Bijection(length, (5, 6)).at(np.array(places)).tolist() == expected


def chi_square(counts, expected):
    """In standard deviations from what is expected, for many cells."""
    cells = len(counts)
    return (((counts - expected) ** 2 / expected).sum() - (cells - 1)) / np.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("length", [8, 300, LARGE])
def test_where_an_index_goes_is_uniform(length):
    """Index by position, in bins of equal width, over many seeds."""
    bins, rounds = min(length, 50), 400
    counts = np.zeros((bins, bins))
    edges = np.arange(length) * bins // length
    for seed in range(rounds):
        np.add.at(counts, (edges, edges[order(length, seed, 0)]), 1)
    sizes = np.bincount(edges)
    expected = np.outer(sizes, sizes) * rounds / length
    assert abs(chi_square(counts.ravel(), expected.ravel())) < 5


@pytest.mark.parametrize("length", [8, 300, LARGE])
def test_what_follows_an_index_is_uniform(length):
    """The distance from each index to the one behind it: every distance but zero as often."""
    rounds = 400 if length < LARGE else 60
    counts = np.zeros(length)
    for seed in range(rounds):
        found = order(length, seed, 1)
        counts += np.bincount((found[1:] - found[:-1]) % length, minlength=length)
    assert counts[0] == 0
    assert abs(chi_square(counts[1:], np.full(length - 1, rounds * (length - 1) / (length - 1)))) < 5


def test_all_orders_of_four_come_as_often():
    counts = Counter(tuple(order(4, seed, 0).tolist()) for seed in range(4800))
    assert len(counts) == 24
    assert abs(chi_square(np.array(list(counts.values())), np.full(24, 200.0))) < 5


@pytest.mark.parametrize("length", [300, LARGE])
@pytest.mark.parametrize("other", [(0, 1), (1, 0)])
def test_epochs_and_seeds_are_independent(length, other):
    """Where two independent orders agree is Poisson distributed with mean 1, and their correlation is small."""
    agreeing = [
        int((order(length, 2 * n, 5) == order(length, 2 * n + other[0], 5 + other[1])).sum()) for n in range(60)
    ]
    assert 30 < sum(agreeing) < 95
    first, second = order(length, 0, 0), order(length, *other)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(length)


def test_starting_does_not_take_longer_for_a_longer_source():
    class Far:
        def __len__(self):
            return 10**15

        def __getitem__(self, index):
            return np.int64(index)

    began = time.perf_counter()
    batch = next(iter(Feed(Far(), batch_size=4, workers=0, shuffle=True)))
    assert time.perf_counter() - began < 5
    assert len(set(batch.tolist())) == 4
    assert batch.max() < 10**15


def test_indices_are_those_of_the_order_by_number_slice_or_array_and_travel_to_other_processes():
    shuffle = Bijection(20_000, (1, 1))
    share = Share(20_000, 100, 8, Shard(1, 3), drop_last=False)
    indices = pickle.loads(pickle.dumps(Indices(shuffle, share)))  # noqa: S301 - our own bytes
    places = np.arange(len(indices))
    expected = shuffle.at(share.positions(places))
    assert np.array_equal(indices[0 : len(indices)], expected)
    assert np.array_equal(indices[4090:4100], expected[4090:4100])
    assert np.array_equal(indices[places[::-7]], expected[::-7])
    assert [indices[n] for n in (0, 5000, len(indices) - 1)] == expected[[0, 5000, -1]].tolist()
    assert len(indices[places[:0]]) == len(indices[5:5]) == 0


@pytest.mark.parametrize("shard", [None, Shard(1, 2)])
def test_neighbours_stay_a_range_where_nothing_is_shuffled(shard):
    """So that a source reads a run at once, also for one of several ranks."""
    seen = []

    class Runs(Chunks):
        def read_into(self, indices, out):
            seen.append(indices)
            out[:] = np.asarray(indices)

    batches = list(Feed(Runs([40]), batch_size=8, workers=0, shard=shard))
    assert all(isinstance(indices, range) for indices in seen)
    assert sum(len(batch) for batch in batches) == (40 if shard is None else 20)


def test_a_feed_shuffles_by_chunks_with_each_epoch_an_order_of_its_own():
    sizes = [7] * 30
    feed = Feed(Chunks(sizes), batch_size=10, workers=0, shuffle="chunks:3", seed=1)
    first, second = (np.concatenate(list(feed)) for _ in range(2))
    assert np.array_equal(np.sort(first), np.arange(210))
    assert np.array_equal(np.sort(second), np.arange(210))
    assert not np.array_equal(first, second)
    assert len(set((first[:21] // 7).tolist())) == 3


@pytest.mark.parametrize(("sizes", "window"), [([40] * 25, 4), ([10, 80, 35, 1, 60, 20, 90] * 3, 5), ([50] * 4, 1)])
def test_the_quality_of_a_shuffle_is_what_is_measured(sizes, window):
    length, chunk_of = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    inner = np.setdiff1d(np.arange(1, length), np.cumsum(sizes))
    spread, said = [], []
    for seed in range(200):
        shuffle = chunked(sizes, window, seed, 0)
        found = shuffle.at(np.arange(length))
        quality = shuffle.quality()
        assert quality.same_chunk == pytest.approx(chance_of_same(chunk_of[found], shuffle._window_firsts))
        assert quality.same_chunk_uniform == pytest.approx(chance_of_same(chunk_of, [0, length]))
        where = np.argsort(found)
        spread.append(np.abs(where[inner] - where[inner - 1]).mean() / ((length + 1) / 3))
        said.append(quality.spread)
    assert np.mean(spread) == pytest.approx(np.mean(said), rel=0.02)


def chance_of_same(chunks, bounds):
    """Go through the windows, and count for each sample those of its own chunk among the others."""
    chances = []
    for low, high in itertools.pairwise(bounds):
        counts = Counter(chunks[low:high].tolist())
        chances += [(counts[chunk] - 1) / max(high - low - 1, 1) for chunk in chunks[low:high].tolist()]
    return np.mean(chances)


def test_mixing_all_chunks_is_uniform_and_says_so():
    quality = Feed(Chunks([10] * 12), batch_size=5, shuffle="chunks:12").shuffle_quality()
    assert quality.spread == pytest.approx(1)
    assert quality.same_chunk == pytest.approx(quality.same_chunk_uniform)
    text = str(Feed(Chunks([10] * 100), batch_size=5, shuffle="chunks").shuffle_quality())
    assert text.startswith("100 chunks in random order, 4 mixed at a time: two samples of a window are of one chunk")
    with pytest.raises(UsageError, match="shuffle='uniform'; only 'chunks' is not uniform"):
        Feed(Chunks([10]), batch_size=5, shuffle=True).shuffle_quality()


@pytest.mark.parametrize("value", ["rows", "chunks:", "chunks:0", "chunks:-1", "chunks:x", 1, None])
def test_a_shuffle_that_cannot_be_meant_is_refused(value):
    with pytest.raises(UsageError, match="shuffle is"):
        parse_shuffle(value)


def test_sources_without_chunks_or_with_wrong_ones_are_refused():
    with pytest.raises(UsageError, match=r"a list names no chunks; use shuffle=True"):
        Feed([1, 2], batch_size=1, shuffle="chunks")
    for starts in ([1, 2], [0, 2, 2], [0, 9], []):
        with pytest.raises(SourceError, match="do not fit its 6 samples"):
            Feed(Chunks([3, 3], starts), batch_size=1, shuffle="chunks")
    assert list(Feed(Chunks([]), batch_size=1, shuffle="chunks")) == []


def test_parquet_names_its_row_groups_and_each_is_decoded_once(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from interlock.feed.sources import _row_groups, open_source  # noqa: PLC0415 - pyarrow may be missing

    decoded = []
    read = _row_groups.read_group

    def read_group(group, *more):
        decoded.append(group.number)
        return read(group, *more)

    monkeypatch.setattr("interlock.feed.sources._parquet.read_group", read_group)
    pq.write_table(pa.table({"x": np.arange(400)}), tmp_path / "a.parquet", row_group_size=20)
    feed = Feed(open_source(tmp_path / "a.parquet"), batch_size=16, workers=2, shuffle="chunks:4", seed=5)
    found = np.concatenate(list(feed))
    assert np.array_equal(np.sort(found), np.arange(400))
    assert not np.array_equal(found, np.arange(400))
    assert sorted(decoded) == [*range(20)]
