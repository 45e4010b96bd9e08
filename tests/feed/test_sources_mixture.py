"""Mixtures: exact proportions over every prefix, each source in order, the same in every run."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import SampleError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import Mixture
from interlock.feed.sources._mixture import integer_shares, pattern

shares_of_sources = st.lists(st.integers(1, 60), min_size=1, max_size=7)


class Counting:
    """Samples that are their own index."""

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if not 0 <= index < self._length:
            raise IndexError(index)
        return np.int64(index)


@given(shares_of_sources)
@settings(max_examples=200, deadline=None)
def test_every_prefix_has_the_exact_shares_within_the_bound_of_the_theorem(shares):
    turns = pattern(shares)
    total = sum(shares)
    assert [int(np.sum(turns == one)) for one in range(len(shares))] == shares
    bound = Fraction(1) - Fraction(1, 2 * len(shares) - 2) if len(shares) > 1 else Fraction(0)
    counts = [0] * len(shares)
    for place, turn in enumerate(turns, start=1):
        counts[turn] += 1
        for share, count in zip(shares, counts, strict=True):
            assert abs(Fraction(place * share, total) - count) <= bound


@given(shares_of_sources, st.lists(st.integers(1, 30), min_size=7, max_size=7), st.integers(1, 400))
@settings(max_examples=150, deadline=None)
def test_each_source_gives_its_samples_in_order_and_again_only_when_all_were_given(shares, lengths, length):
    names = [f"s{one}" for one in range(len(shares))]
    sources = {name: Counting(count) for name, count in zip(names, lengths, strict=False)}
    mixture = Mixture(sources, weights=dict(zip(names, shares, strict=True)), length=length)
    given_by: dict[str, list[int]] = {name: [] for name in names}
    for index in range(length):
        name, number = mixture.locate(index)
        assert mixture[index] == number
        given_by[name].append(number)
    for name in names:
        expected = itertools.cycle(range(len(sources[name])))
        assert given_by[name] == list(itertools.islice(expected, len(given_by[name])))
    assert len({mixture.id_of(index) for index in range(length)}) == length


@given(shares_of_sources, st.lists(st.integers(1, 40), min_size=7, max_size=7))
@settings(max_examples=150, deadline=None)
def test_the_lengths_end_where_a_source_is_exhausted(shares, lengths):
    names = [f"s{one}" for one in range(len(shares))]
    sources = {name: Counting(count) for name, count in zip(names, lengths, strict=False)}
    weights = dict(zip(names, shares, strict=True))
    shortest = Mixture(sources, weights=weights)
    longest = Mixture(sources, weights=weights, length="all exhausted")
    assert not any("#" in shortest.id_of(index) for index in range(len(shortest)))
    beyond = Mixture(sources, weights=weights, length=len(shortest) + 1)
    assert "#2" in beyond.id_of(len(shortest))
    seen = {longest.locate(index) for index in range(len(longest))}
    assert seen == {(name, number) for name in names for number in range(len(sources[name]))}
    last = longest.locate(len(longest) - 1)
    assert last not in {longest.locate(index) for index in range(len(longest) - 1)}


def test_two_sources_take_turns_evenly():
    mixture = Mixture({"a": Counting(70), "b": Counting(30)}, weights={"a": 0.7, "b": 0.3})
    assert "".join(mixture.locate(index)[0] for index in range(20)) == "abaaabaaba" * 2
    assert len(mixture) == 100


def test_a_sample_far_out_is_found_without_those_before_it():
    huge = {"a": Counting(1 << 50), "b": Counting(1 << 50)}
    mixture = Mixture(huge, weights={"a": 2, "b": 1}, length=3 << 48)
    assert mixture.locate((3 << 48) - 3) == ("a", (2 << 48) - 2)
    assert mixture.locate((3 << 48) - 2) == ("b", (1 << 48) - 1)


def test_weights_are_meant_exactly():
    assert integer_shares({"a": 0.7, "b": 0.3}) == [7, 3]
    assert integer_shares({"a": 1 / 3, "b": 2 / 3}) == [1, 2]
    assert integer_shares({"a": 1000, "b": 500}) == [2, 1]


def test_a_feed_over_a_mixture_gives_ids_with_names():
    mixture = Mixture({"a": Counting(4), "b": Counting(2)}, weights={"a": 2, "b": 1})
    with Feed(mixture, batch_size=3, ids=True) as feed:
        assert [(ids.tolist(), batch.tolist()) for ids, batch in feed] == [
            (["a:0", "b:0", "a:1"], [0, 0, 1]),
            (["a:2", "b:1", "a:3"], [2, 1, 3]),
        ]


def test_ids_and_fingerprints_of_the_sources_are_used_if_they_have_them():
    class Named(Counting):
        def id_of(self, index):
            return f"row-{index}"

        def fingerprint(self):
            return {"kind": "named"}

    mixture = Mixture({"a": Named(2)}, weights={"a": 1}, length=3)
    assert [mixture.id_of(index) for index in range(3)] == ["a:row-0", "a:row-1", "a:row-0#2"]
    assert mixture.fingerprint()["sources"] == {"a": {"kind": "named"}}


def test_an_error_has_the_index_of_the_mixture_and_names_the_source():
    class Broken(Counting):
        def __getitem__(self, index):
            raise SampleError("cannot read row", index=index, why="broken")

    mixture = Mixture({"a": Counting(5), "bad": Broken(5)}, weights={"a": 1, "bad": 1})
    position = next(index for index in range(4, len(mixture)) if mixture.locate(index)[0] == "bad")
    with pytest.raises(SampleError, match="source 'bad': cannot read row: broken") as caught:
        mixture[position]
    assert caught.value.index == position


def test_a_pickled_mixture_is_the_same():
    mixture = Mixture({"a": list(range(9)), "b": list(range(5))}, weights={"a": 3, "b": 1})
    copy = pickle.loads(pickle.dumps(mixture))  # noqa: S301 - our own bytes
    assert [copy.id_of(index) for index in range(len(copy))] == [mixture.id_of(index) for index in range(len(mixture))]


@pytest.mark.parametrize(
    ("sources", "weights", "options", "message"),
    [
        ({}, {}, {}, "differ in names"),
        ({"a": [1]}, {"b": 1}, {}, "differ in names"),
        ({"a": []}, {"a": 1}, {}, "source 'a' of a mixture is empty"),
        ({"a": [1]}, {"a": 0}, {}, "weight 'a' of a mixture is 0"),
        ({"a": [1]}, {"a": float("nan")}, {}, "weight 'a' of a mixture is nan"),
        ({"a": [1], "b": [1]}, {"a": 0.123456789, "b": 1}, {}, "too finely divided"),
        ({"a": [1]}, {"a": 1}, {"length": 0}, "length of a mixture is 0"),
        ({"a": [1]}, {"a": 1}, {"length": "until it rains"}, "length of a mixture is 'until it rains'"),
    ],
)
def test_mixtures_that_cannot_be_meant_are_refused(sources, weights, options, message):
    with pytest.raises(UsageError, match=message):
        Mixture(sources, weights=weights, **options)


def test_an_index_outside_is_refused():
    mixture = Mixture({"a": [1, 2]}, weights={"a": 1})
    for index in (-1, 2):
        with pytest.raises(IndexError):
            mixture[index]
