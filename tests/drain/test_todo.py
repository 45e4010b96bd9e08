"""What is left to do: for any number of ranks, as a sequence, in little memory; and codes that cannot be trusted."""

from __future__ import annotations

import base64
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.drain import Drain
from interlock.drain._idcodes import encode_ids, parse_code
from interlock.drain._idsets import IdSet
from interlock.drain._manifest import ShardRecord
from interlock.drain._resume import PendingBlockSource, pending_source
from interlock.drain._todo import todo
from interlock.errors import SinkConflictError, UsageError

RANGES = st.builds(
    range,
    st.integers(-70_000, 70_000),
    st.integers(-70_000, 70_000),
    st.sampled_from([1, 1, 1, 2, 5, -1]),
)


def set_of(ids):
    found = IdSet()
    found.add_many(np.array(sorted(ids), np.int64))
    return found


@settings(deadline=None)
@given(RANGES, st.lists(st.integers(-300, 300)), st.integers(1, 9))
def test_the_parts_of_all_ranks_are_what_is_left_in_its_order(ids, done, world):
    committed = set_of(done)
    parts = [todo(ids, committed, rank, world) for rank in range(world)]
    for rank, part in enumerate(parts):
        expected = [one for one in ids[rank::world] if one not in set(done)]
        assert list(part) == expected
        assert len(part) == len(expected)
        assert np.asarray(part).tolist() == expected
        assert [one for block in part.blocks() for one in block.tolist()] == expected


@settings(deadline=None)
@given(st.sets(st.integers(0, 20_000)), st.data())
def test_it_is_a_sequence(done, data):
    left = todo(range(20_000), set_of(done), 1, 3)
    expected = [one for one in range(1, 20_000, 3) if one not in done]
    for _ in range(5):
        index = data.draw(st.integers(-len(expected), len(expected) - 1))
        assert left[index] == expected[index]
    assert left.positions(np.array([0, len(expected) - 1])).tolist() == [expected[0], expected[-1]]
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match="none at"):
            left[outside]


@pytest.mark.parametrize("ids", [["a", "b", "c", "d"], [9, 7, 5, 3], np.array([2, 2**62, -5, 8])])
def test_ids_need_not_be_a_range(ids):
    committed = IdSet()
    committed.add_many(np.array(ids[1:2]))
    assert list(todo(ids, committed, 0, 1)) == [ids[0], ids[2], ids[3]]
    assert list(todo(ids, committed, 1, 2)) == [ids[3]]


def test_many_strings_are_kept_as_they_are_and_asked_for_in_blocks(monkeypatch):
    monkeypatch.setattr("interlock.drain._todo._TEST_IDS", 8)
    names = [f"image-{number}" for number in range(100)]
    committed = IdSet()
    committed.add_many(np.array(names[::2]))
    left = todo(tuple(names), committed, 1, 3)
    expected = [name for name in names[1::3] if name not in names[::2]]
    assert list(left) == expected
    assert left[-1] == expected[-1]
    assert np.asarray(left).tolist() == expected
    for wrong, message in (([*names[:20], 7], "partly strings"), ([*names[:16], *range(8)], "partly strings")):
        with pytest.raises(UsageError, match=message):
            todo(wrong, committed, 0, 1)


def test_a_list_of_strings_may_change_once_it_was_given():
    names = ["a", "b", "c"]
    left = todo(names, IdSet(), 0, 1)
    names[0] = "z"
    assert list(left) == ["a", "b", "c"]


def test_nothing_left_is_an_empty_sequence():
    for left in (todo(range(0), IdSet(), 0, 1), todo([], IdSet(), 0, 1), todo(range(3), set_of(range(3)), 0, 1)):
        assert (len(left), list(left), np.asarray(left).size) == (0, [], 0)


def test_it_samples_for_a_loader(tmp_path):
    torch = pytest.importorskip("torch")
    with Drain(f"npy:{tmp_path / 'out'}", rank=(1, 2)) as drain:
        loader = torch.utils.data.DataLoader(torch.arange(10) * 10, batch_size=2, sampler=drain.todo(range(10)))
        assert [batch.tolist() for batch in loader] == [[10, 30], [50, 70], [90]]


def test_a_pending_source_of_many_rows_keeps_a_bit_for_each(monkeypatch):
    class Squares:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return index * index

        def read_into(self, indices, out):
            out[:] = np.asarray(indices) ** 2

    monkeypatch.setattr("interlock.drain._resume._MOST_LISTED", 10)
    left = pending_source(Squares(), set_of(range(0, 100, 2)), 0, 1)
    assert isinstance(left, PendingBlockSource)
    assert left._index is None
    assert [left[k] for k in range(3)] == [1, 9, 25]
    assert left.id_of(4) == 9
    out = np.zeros(2, np.int64)
    left.read_into([0, 49], out)
    assert out.tolist() == [1, 99 * 99]


def test_ten_million_ids_take_a_few_bits_each():
    committed = IdSet()
    rows = 10_000_000
    for start in range(0, rows // 2, 65_536):
        code = parse_code(encode_ids(np.arange(start, min(start + 65_536, rows // 2))), min(65_536, rows // 2 - start))
        assert code is not None
        committed.add_code(code)
    tracemalloc.start()
    left = todo(range(rows), committed, 1, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6  # an array of them would take 13 MB, that of all 80 MB
    assert len(left) == len(range(1, rows, 3)) - len(range(1, rows // 2, 3))


# ---------------------------------------------------------------- codes


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(["run", "bits", "gaps"]), min_size=1, max_size=6), st.integers(-(2**40), 2**40))
def test_a_set_takes_up_codes_of_every_kind(kinds, first):
    chance = np.random.default_rng(abs(first))
    ours, model = IdSet(), set[int]()
    for at, kind in enumerate(kinds):
        start = first + at * 50_000
        ids = {
            "run": np.arange(start, start + 140_000),
            "bits": start + np.unique(chance.integers(0, 40_000, 20_000)),
            "gaps": start + np.unique(chance.integers(0, 2**34, 500)),
        }[kind]
        code = parse_code(encode_ids(ids), len(ids))
        assert code is not None
        assert code.kind == kind[0]
        assert (code.first, code.last) == (ids[0], ids[-1])
        assert np.array_equal(code.ids(), ids)
        assert ours.add_code(code) == len(set(ids.tolist()) - model)
        model |= set(ids.tolist())
    probe = np.array(sorted(model))
    assert len(ours) == len(model)
    assert ours.contains_many(probe).all()
    assert not ours.contains_many(np.setdiff1d(np.concatenate((probe + 1, probe - 1)), probe)).any()


def code_of(kind, width, first, count, body):
    return "set1:" + base64.b64encode(struct.pack("<cBqQ", kind, width, first, count) + body).decode()


BOMB = zlib.compress(bytes(50_000_000))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (code_of(b"g", 8 | 128, 0, 50_000_000 // 8, BOMB), "too long"),
        (code_of(b"g", 1 | 128, 0, 9, BOMB), "cut or too long"),
        (code_of(b"r", 8, 0, 1, struct.pack("<Q", 2**63)), "does not spell"),
        (code_of(b"r", 1, 2**63 - 5, 1, b"\x09"), "does not fit 64 bits"),
        (code_of(b"r", 1, 0, 2, b"\x04\x04"), "runs are damaged"),
        (code_of(b"g", 8, 0, 9, struct.pack("<9Q", *[2**64 - 1] * 9)), "does not fit 64 bits"),
        (code_of(b"b", 1, 0, 2, b"\xff\x00"), "bits are damaged"),
        (code_of(b"b", 1, 3, 2, b"\xff\x03"), "bits are damaged"),
        (code_of(b"x", 1, 0, 1, b"\x01"), "head is damaged"),
        (code_of(b"g", 3, 0, 1, b"\x01\x01\x01"), "head is damaged"),
        ("set2:AAAA", "no kind that this version knows"),
        ("set1:AAAA", "requires a buffer"),
    ],
)
def test_a_code_that_lies_is_refused_before_it_takes_memory(code, why):
    tracemalloc.start()
    with pytest.raises(UsageError, match=f"cannot be read: .*{why}"):
        parse_code(code, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_manifest_cannot_claim_more_rows_than_fit_into_its_shard(sink, folder):
    with Drain(sink) as drain:
        drain.put([1], np.ones(1))
    rows = 10**12
    code = code_of(b"r", 8, 0, 1, struct.pack("<Q", rows - 1))
    (shard,) = (path.name for path in folder.iterdir() if path.name.startswith("part-"))
    (folder / "_interlock/manifest.jsonl").write_bytes(ShardRecord(shard, rows, 500, "0" * 64, code).line())
    with pytest.raises(SinkConflictError, match="1,000,000,000,000 rows in 500 bytes"):
        Drain(sink)


def test_strings_take_sixteen_bytes_each_and_are_told_apart():
    ids = IdSet()
    names = np.array([f"image-{n}.jpg" for n in range(3000)])
    for start in range(0, 3000, 100):
        ids.add_many(names[start : start + 150])
    assert len(ids) == 3000
    assert ids.contains_many(names).all()
    assert not ids.contains_many(np.char.add(names, "x")).any()
    assert ids._texts.size_bytes == 16 * 3000
    assert len(ids._texts._levels) < 10


def test_two_strings_with_the_same_first_half_of_their_hash_are_two(monkeypatch):
    halves = {"a": (5, 1), "b": (5, 2), "c": (5, 3)}

    def hashes(texts):
        both = np.array([halves[text] for text in texts.tolist()], np.int64)
        return both[:, 0], both[:, 1]

    monkeypatch.setattr("interlock.drain._idlevels.hashes", hashes)
    monkeypatch.setattr("interlock.drain._idsets.hashes", hashes)
    ids = IdSet()
    assert [ids.add_many(np.array([one])) for one in ("a", "b", "a")] == [1, 1, 0]
    assert [one in ids for one in "abc"] == [True, True, False]
    ids.discard_many(np.array(["b"]))
    assert [one in ids for one in "abc"] == [True, False, False]
    assert IdSet().add_many(np.array(list("ababa"))) == 2
