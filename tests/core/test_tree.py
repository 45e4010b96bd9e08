"""Samples, batches and outputs are trees: taken apart and put together without loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import UsageError
from interlock.lowlevel import flatten

PROPERTY = settings(derandomize=True, database=None, deadline=None)


class Pair(NamedTuple):
    left: Any
    right: Any


KEYS = st.text("abc", min_size=1, max_size=2)

TREES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.none() | st.binary(max_size=3),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=12,
)


@PROPERTY
@given(TREES)
def test_a_tree_rebuilt_from_its_leaves_is_the_same_tree(tree: Any):
    leaves, structure = flatten(tree)
    again = structure.rebuild(leaves)
    assert again == tree
    assert type(again) is type(tree)


@PROPERTY
@given(TREES)
def test_there_is_one_name_a_leaf_and_no_name_twice(tree: Any):
    leaves, structure = flatten(tree)
    names = structure.names()
    assert len(names) == len(leaves) == len(set(names))


@PROPERTY
@given(TREES, TREES)
def test_structures_are_equal_exactly_when_the_trees_differ_in_leaves_only(one: Any, other: Any):
    leaves, structure = flatten(one)
    replaced = structure.rebuild([object() for _ in leaves])
    assert flatten(replaced)[1] == structure
    if flatten(other)[1] == structure:
        assert structure.rebuild(flatten(other)[0]) == other


def test_leaves_come_left_to_right_under_dotted_names():
    tree = {"image": 1, "pair": (2, [3, 4]), "more": {"x": 5}, "named": Pair(6, 7)}
    leaves, structure = flatten(tree)
    assert leaves == [1, 2, 3, 4, 5, 6, 7]
    assert structure.names() == ["image", "pair.0", "pair.1.0", "pair.1.1", "more.x", "named.0", "named.1"]


def test_a_lone_leaf_has_the_empty_name():
    leaves, structure = flatten("leaf")
    assert leaves == ["leaf"]
    assert structure.names() == [""]


def test_a_key_that_is_no_string_is_refused_by_name():
    with pytest.raises(UsageError, match="dict key 3 is not a string"):
        flatten({"a": {3: 1}})


@pytest.mark.parametrize("tree", [{"a.b": 1, "a": {"b": 2}}, {"": {"a": 1}, "a": 2}])
def test_two_leaves_of_one_name_are_refused_so_that_no_column_hides_another(tree: Any):
    with pytest.raises(UsageError, match="two parts of a sample would be called 'a"):
        flatten(tree)[1].names()


@PROPERTY
@given(TREES, TREES)
def test_the_leaves_of_a_tree_are_had_without_its_structure_if_that_is_known(one: Any, other: Any):
    leaves, structure = flatten(one)
    assert structure.leaves_of(one) == leaves
    found, of_other = flatten(other)
    assert structure.leaves_of(other) == (found if of_other == structure else None)
