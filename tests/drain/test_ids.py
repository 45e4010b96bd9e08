"""Ids: what counts as one, sets of them, their code in a manifest."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.drain._idcodes import decode_ids, encode_ids, parse_code
from interlock.drain._idlevels import hashes
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
        (np.array(["x", "yy"], ">U3"), ["x", "yy"]),
        (np.array(["x", "yy", "z"])[::2], ["x", "z"]),
        (np.array(["x", "yy"], np.dtypes.StringDType()), ["x", "yy"]),
        (np.array(["\ud7ff", "\ue000", ""]), ["\ud7ff", "\ue000", ""]),
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
        (np.array(["a\0", "b"], np.dtypes.StringDType()), "NUL"),
        (np.array([*["ok"] * 40_000, "a\0b"]), r"'a\\x00b' holds a NUL"),
        (np.array([None], np.dtypes.StringDType(na_object=None)), "dtype StringDType"),
        (["ok", "\udce4.png"], "not valid Unicode"),
        (np.array([*["ok"] * 40_000, "\udfff"]), "not valid Unicode"),
    ],
    ids=lambda value: repr(value)[:40],
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


@st.composite
def groups(draw):
    """Ids on a few pages: few or many on each, close together or far apart, in any order."""
    page = draw(st.integers(-3, 4))
    count = draw(st.sampled_from([1, 7, 8, 9, 1023, 1024, 1100]))
    step = draw(st.sampled_from([1, 1, 7, 61, 200]))
    ids = (page << 16) + draw(st.integers(-40, 65_000)) + step * np.arange(count, dtype=np.int64)
    return ids[::-1] if draw(st.booleans()) else ids


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([0, 3, 2048]),
    st.lists(st.tuples(st.sampled_from(["add", "add", "code", "discard"]), groups()), max_size=12),
    st.integers(-(2**15), 2**15),
)
def test_ids_are_the_same_in_a_bitmap_and_out_of_it(free_pages, steps, first):
    ours, model = IdSet(), set[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlock.drain._idsets._FREE_PAGES", free_pages)
        for verb, ids in steps:
            new = set(ids.tolist())
            if verb == "discard":
                ours.discard_many(ids)
                model -= new
                continue
            code = parse_code(encode_ids(ids), len(ids))
            assert code is not None
            assert (ours.add_many(ids) if verb == "add" else ours.add_code(code)) == len(new - model)
            model |= new
            assert ours.contains_many(ids).all()
    assert len(ours) == len(model)
    around = np.arange(-4 << 16, 9 << 16)
    inside = np.zeros(len(around), np.bool_)
    inside[np.array(sorted(model), np.int64) - around[0]] = True
    assert np.array_equal(ours.contains_many(around), inside)
    assert np.array_equal(ours.contains_many(around[::-13]), inside[::-13])
    part = 8 * (first // 8) - int(around[0])
    bits = np.unpackbits(ours.bits(8 * (first // 8), 150_001), bitorder="little")
    assert np.array_equal(bits[:150_001], inside[part : part + 150_001])
    assert not bits[150_001:].any()


def test_dense_ids_take_a_bit_each_and_scattered_ones_no_bitmap():
    dense = IdSet()
    dense.add_many(np.arange(1 << 20))
    assert len(dense._pages) == 16
    loose = IdSet()
    loose.add_many(np.arange(1_000, dtype=np.int64) << 40)
    assert len(loose._pages) == 0
    assert loose._loose.size_bytes == 8_000


def test_ids_from_everywhere_are_in_bitmaps_while_those_take_little():
    near = IdSet()
    for first in range(10):
        near.add_many(np.arange(first, 1_000_000, 1_000))
    assert len(near._pages) == 16
    assert near._loose.size_bytes == 0
    far = IdSet()
    far.add_many(np.arange(0, 8_000 * 65_536, 6_000))
    assert len(far._pages) == 0  # 8,000 pages of 8 KiB are much, for 87,382 ids


def test_a_page_that_is_missing_in_between_is_not_taken_for_its_neighbour():
    ids = IdSet()
    for page in (0, 2):
        ids.add_many((page << 16) + np.arange(2_000))
    assert ids.contains_many(np.array([5, 65_536 + 5])).tolist() == [True, False]
    assert ids.add_many(np.array([5, 65_536 + 5])) == 1


def test_a_set_of_few_pages_keeps_them_in_their_order():
    ids = IdSet()
    for page in (5, 3, 4, 0, 1, 2, 7, 6):
        ids.add_many((page << 16) + np.arange(2_000))
    ids.add_many((8 << 16) + np.arange(2_000))  # makes room, and so puts them in order
    assert ids._pages.shift(0, 8) == 0
    assert len(ids) == 9 * 2_000
    assert ids.contains_many(np.concatenate([(page << 16) + np.arange(2_000) for page in range(9)])).all()


def test_a_set_of_strings_behaves_as_a_set():
    ids = IdSet()
    assert ids.add_many(np.array(["a", "b", "a"])) == 2
    ids.discard_many(np.array(["b", "z"]))
    assert ids.contains_many(np.array(["a", "b"])).tolist() == [True, False]
    assert "a" in ids
    assert 1 not in ids
    assert len(ids) == 1


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "add", "discard"]), st.lists(TEXT, min_size=1, max_size=20))))
def test_a_set_of_any_strings_behaves_as_a_set(steps):
    ours, model = IdSet(), set[str]()
    for verb, texts in steps:
        array = as_ids(texts)
        if verb == "add":
            assert ours.add_many(array) == len(set(texts) - model)
            model |= set(texts)
        else:
            ours.discard_many(array)
            model -= set(texts)
        assert len(ours) == len(model)
        assert ours.contains_many(array.astype("U30")).tolist() == [one in model for one in texts]


def test_a_hash_of_a_string_depends_on_each_character_and_its_place_and_on_nothing_else():
    texts = np.array(["", "a", "b", "ab", "ba", "aa", "aab", "x" * 300, "x" * 299 + "y", "\U0010ffff", "\uffff"])
    keys, tags = hashes(texts)
    assert len(set(keys.tolist())) == len(set(tags.tolist())) == len(texts)
    for other in (texts.astype("U400"), texts.astype(">U300"), np.repeat(texts, 2)[::2]):
        assert [half.tolist() for half in hashes(other)] == [keys.tolist(), tags.tolist()]
    one_by_one = [hashes(np.array([text]))[0][0] for text in texts.tolist()]
    assert one_by_one == keys.tolist()


def test_of_a_few_similar_strings_no_two_have_the_same_quarter_of_a_hash():
    names = np.array([f"images/{number:06d}.jpg" for number in range(300)])
    quarters = np.column_stack(hashes(names)).view(np.uint32)
    assert [len(np.unique(quarter)) for quarter in quarters.T] == [300] * 4  # else with a chance of one in 20,000


def test_a_hash_is_another_in_each_process():
    program = "import numpy as np; from interlock.drain._idlevels import hashes; print(hashes(np.array(['a'])))"
    command = [sys.executable, "-c", program]
    found = {subprocess.run(command, check=True, capture_output=True, timeout=60).stdout for _ in range(2)}
    assert len(found) == 2


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
