"""Ids: what counts as one, sets of them, their code in a manifest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drain._idcodes import decode_ids, encode_ids
from interlock.drain._ids import as_ids, first_of_each
from interlock.drain._idsets import IdSet, IdView
from interlock.errors import UsageError

INT64 = st.integers(-(2**63), 2**63 - 1)
MIXED = st.one_of(INT64, st.integers(0, 300), st.integers(65_500, 65_600))


@pytest.mark.parametrize(
    ("given_ids", "expected"),
    [
        ([3, 1, -2], [3, 1, -2]),
        (range(3), [0, 1, 2]),
        ((np.int32(4), 5), [4, 5]),
        (np.array([1, 2], np.uint8), [1, 2]),
        (np.array([2**63 - 1], np.uint64), [2**63 - 1]),
        (np.array([7, 8], object), [7, 8]),
        (["a", np.str_("b")], ["a", "b"]),
        (np.array(["x", "yy"]), ["x", "yy"]),
        (np.array(["x", "yy"], object), ["x", "yy"]),
        ([], []),
    ],
    ids=repr,
)
def test_ids_are_integers_or_strings(given_ids, expected):
    assert as_ids(given_ids).tolist() == expected


def test_tensors_are_ids_too():
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    assert as_ids(torch.arange(3)).tolist() == [0, 1, 2]
    assert as_ids(jnp.arange(3)).tolist() == [0, 1, 2]
    assert as_ids([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (5, "ids are one int"),
        ("abc", "ids are one str"),
        ([True, False], "id True is a bool"),
        ([np.True_], "is a bool"),
        (np.array([True]), "dtype bool"),
        ([1.0], "dtype float64"),
        ([1, "a"], "partly strings"),
        ([b"a"], "is a bytes"),
        (np.array([b"a"]), "decode"),
        ([[1], [2]], r"shape \(2, 1\)"),
        ([2**63], "does not fit"),
        ([2**70, 1], "does not fit"),
        (np.array([None]), "dtype object"),
        (["a\0"], "NUL"),
        (["ok", "\udce4.png"], "not valid Unicode"),
    ],
    ids=repr,
)
def test_anything_else_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        as_ids(wrong)


def test_ids_are_copied_so_that_the_caller_may_reuse_its_array():
    mine = np.arange(3)
    taken = as_ids(mine)
    mine[:] = 9
    assert taken.tolist() == [0, 1, 2]


@given(st.lists(MIXED, unique=True, min_size=1))
def test_a_code_of_ids_spells_the_sorted_ids(ids):
    array = np.array(ids, np.int64)
    decoded = decode_ids(encode_ids(array), len(ids))
    assert decoded is not None
    assert decoded.tolist() == sorted(ids)


def test_a_run_of_ids_takes_a_fraction_of_a_bit_each():
    assert 8 * len(encode_ids(np.arange(1_000_000))) < 200_000


@pytest.mark.parametrize("code", ["int:", "int:!!", "int:eJw=", "other", encode_ids(np.arange(3))])
def test_a_damaged_code_is_refused(code):
    with pytest.raises(UsageError, match="cannot be read"):
        decode_ids(code, 5)


@given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), st.lists(MIXED, max_size=90))))
def test_a_set_of_integers_behaves_as_a_set(steps):
    ours = IdSet()
    model: set[int] = set()
    for verb, ids in steps:
        array = np.array(ids, np.int64)
        if verb == "add":
            assert ours.add_many(array) == len(set(ids) - model)
            model |= set(ids)
        else:
            ours.discard_many(array)
            model -= set(ids)
        assert len(ours) == len(model)
        assert ours.contains_many(array).tolist() == [one in model for one in ids]
    assert all(one in ours for one in model)
    probe = [0, 65_535, 65_536, -1, 2**63 - 1]
    assert [one in ours for one in probe] == [one in model for one in probe]


def test_dense_ids_take_a_bit_each_and_scattered_ones_no_bitmap():
    dense = IdSet()
    dense.add_many(np.arange(1 << 20))
    assert len(dense._pages) == 16
    loose = IdSet()
    loose.add_many(np.arange(1_000, dtype=np.int64) << 40)
    assert len(loose._pages) == 0
    assert loose._loose.size_bytes == 8_000


def test_a_set_of_strings_behaves_as_a_set():
    ids = IdSet()
    assert ids.add_many(np.array(["a", "b", "a"])) == 2
    ids.discard_many(np.array(["b", "z"]))
    assert ids.contains_many(np.array(["a", "b"])).tolist() == [True, False]
    assert "a" in ids
    assert 1 not in ids
    assert len(ids) == 1


def test_what_is_no_id_is_in_no_set():
    ids = IdSet()
    ids.add_many(np.array([0, 1]))
    assert True not in ids
    assert 1.0 not in ids
    assert None not in ids
    assert np.int64(1) in ids


def test_a_view_follows_its_set():
    ids = IdSet()
    view = IdView(ids)
    ids.add_many(np.array([4]))
    assert len(view) == 1
    assert 4 in view
    assert view.contains_many([4, 5]).tolist() == [True, False]


@given(st.lists(st.integers(0, 9)))
def test_first_of_each_marks_each_id_once(ids):
    first = first_of_each(np.array(ids, np.int64))
    assert [one for one, is_first in zip(ids, first, strict=True) if is_first] == list(dict.fromkeys(ids))
