"""What is left to do, as a source."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.drain import Drain, Failure
from interlock.errors import UsageError
from interlock.lowlevel import Source, SupportsIds, SupportsReadInto


class Files:
    """A source whose samples have names."""

    names = ("a.png", "b.png", "c.png", "d.png")

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return f"image of {self.names[index]}"

    def id_of(self, index):
        return self.names[index]


class Blocks(Files):
    """One that reads many samples at once."""

    def __init__(self):
        self.asked = []

    def read_into(self, indices, out):
        self.asked.append((list(indices), out))


@pytest.fixture
def drain(tmp_path):
    with Drain(f"npy:{tmp_path / 'numbers'}") as drain:
        drain.put([0, 3, 4], np.zeros(3))
        drain.flush()
        yield drain


@pytest.fixture
def named(tmp_path):
    with Drain(f"npy:{tmp_path / 'names'}") as drain:
        drain.put(["b.png"], np.zeros(1))
        drain.flush()
        yield drain


def test_an_array_is_a_source_of_its_rows(drain):
    left = drain.pending(np.arange(10, 16))
    assert issubclass(type(left), Source)
    assert left.index.dtype == np.int64
    assert left.index.tolist() == [1, 2, 5]
    assert [int(left[k]) for k in range(len(left))] == [11, 12, 15]
    assert [left.id_of(k) for k in range(len(left))] == [1, 2, 5]
    assert not isinstance(left, SupportsReadInto)


def test_a_source_with_ids_is_asked_for_them(named):
    left = named.pending(Files())
    assert issubclass(type(left), SupportsIds)
    assert [left.id_of(k) for k in range(len(left))] == ["a.png", "c.png", "d.png"]
    assert left[1] == "image of c.png"


def test_reading_many_at_once_is_passed_on_with_the_sources_own_numbers(named):
    source = Blocks()
    left = named.pending(source)
    assert isinstance(left, SupportsReadInto)
    left.read_into([2, 0], None)
    assert source.asked == [([3, 0], None)]


def test_pairs_of_an_iterable_pass_if_they_are_not_committed(drain):
    pairs = ((one, one * 10) for one in range(6))
    assert list(drain.pending(pairs)) == [(1, 10), (2, 20), (5, 50)]


def test_what_was_put_but_not_committed_is_pending(drain):
    drain.put([1], np.zeros(1))
    assert 1 in drain.pending(np.arange(3)).index
    drain.flush()
    assert 1 not in drain.pending(np.arange(3)).index


def test_nothing_is_left_of_an_empty_or_a_finished_source(drain):
    assert len(drain.pending([])) == 0
    assert len(drain.pending(np.arange(1))) == 0


@pytest.mark.parametrize("wrong", [{"a": 1}, "text", 5, None])
def test_what_is_no_source_is_refused(drain, wrong):
    with pytest.raises(UsageError, match="is no source"):
        drain.pending(wrong)


def test_an_iterable_without_ids_is_refused_with_the_next_step(drain):
    with pytest.raises(UsageError, match=r"item 0 of the source is a ndarray.*yield \(id, sample\) pairs"):
        list(drain.pending(iter([np.zeros(3)])))


def test_a_large_source_is_indexed_in_one_go(drain):
    left = drain.pending(range(3_000_000))
    assert len(left) == 2_999_997
    assert left.id_of(len(left) - 1) == 2_999_999


# ---------------------------------------------------------------- rows that failed


@pytest.mark.parametrize("names", [False, True])
def test_rows_that_failed_often_are_left_out_over_runs_and_told(tmp_path, names):
    sink, source = f"npy:{tmp_path / 'out'}", Files() if names else np.zeros((4, 2))
    ids: list[int | str] = list(Files.names) if names else list(range(4))
    for attempt in (1, 2):
        with Drain(sink) as drain:
            left = drain.pending(source, max_attempts=2)
            assert [left.id_of(at) for at in range(len(left))] == ids
            drain.fail([ids[1], ids[2]] if attempt == 1 else [ids[1]], f"try {attempt}")
            drain.flush()
            assert drain.failures[ids[1]] == Failure(ids[1], f"try {attempt}", attempt)
    with Drain(sink) as drain:
        left = drain.pending(source, max_attempts=2)
        assert [left.id_of(at) for at in range(len(left))] == [ids[0], ids[2], ids[3]]
        assert [one for one, _ in drain.pending(((one, None) for one in ids), max_attempts=2)] == [ids[0], *ids[2:]]
        assert len(drain.pending(source)) == 4
        drain.put([ids[2]], np.ones(1))
        drain.flush()
        assert set(drain.failures) == {ids[1]}
        with pytest.raises(UsageError, match="max_attempts is 0: then no row would be tried"):
            drain.pending(source, max_attempts=0)
