"""Leaves whose first dimension differs from sample to sample."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import interlock
from interlock import Feed, Offsets, Padded, Stage
from interlock.errors import InternalError, SampleError, UsageError
from interlock.feed import retry
from interlock.feed._layout import Layout
from interlock.feed._ragged_layout import lay_out
from interlock.frameworks import _jax_unpack
from interlock.lowlevel import SimulatedDevice

LENGTH, BOXES, FILL = 6, 3, -7
RAGGED: dict[str, Any] = {"t": Padded(LENGTH, FILL), "box": Offsets(BOXES)}
SCHEDULES = ["lazy", "eager", "starve:feed", *(f"random:{seed}" for seed in range(3))]


class Documents:
    """Samples with so many tokens; some cannot be read."""

    def __init__(self, lengths, broken=()):
        self.lengths = list(lengths)
        self.broken = set(broken)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError("broken")
        return self.sample(index)

    def sample(self, index):
        count = self.lengths[index]
        boxes = np.arange(count % (BOXES + 1) * 2, dtype=np.float64).reshape(-1, 2) + 10 * index
        return {"t": np.arange(count, dtype=np.int16) + 100 * index, "box": boxes, "y": index}


def lengths(count, seed=0):
    return np.random.default_rng(seed).integers(0, LENGTH + 1, count).tolist()


def check(batch, samples, *, fixed=False):
    """Compare a batch with what plain NumPy makes of its samples."""
    rows = len(samples)
    padded = np.full((rows, LENGTH), FILL, np.int16)
    for row, sample in zip(padded, samples, strict=True):
        row[: len(sample["t"])] = sample["t"]
    assert np.array_equal(np.asarray(batch["t"]["values"]), padded)
    found = np.asarray(batch["t"]["lengths"])
    assert (found.tolist(), str(found.dtype)) == ([len(sample["t"]) for sample in samples], "int32")
    joined = np.concatenate([sample["box"] for sample in samples])
    if fixed:
        joined = np.concatenate([joined, np.zeros((rows * BOXES - len(joined), 2))])
    assert np.array_equal(np.asarray(batch["box"]["values"]), joined)
    edges = np.cumsum([0, *(len(sample["box"]) for sample in samples)])
    assert np.asarray(batch["box"]["offsets"]).tolist() == edges.tolist()
    assert np.asarray(batch["y"]).tolist() == [sample["y"] for sample in samples]


def reference(source, size, action, *, drop_last):
    """Return the indices in each batch."""
    count, batches = len(source), []
    for start in range(0, count, size):
        if drop_last and start + size > count:
            continue
        rows = list(range(start, min(start + size, count)))
        if action == "skip":
            rows = [index for index in rows if index not in source.broken]
        if action == "substitute":
            others = [[(row + step) % count for step in range(count)] for row in rows]
            rows = [next(index for index in ring if index not in source.broken) for ring in others]
        if rows:
            batches.append(rows)
    return batches


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_batches_are_those_of_plain_numpy_and_nothing_stale_shows(data):
    """Every batch is scribbled over before its slot comes back."""
    counts = data.draw(st.lists(st.integers(0, LENGTH), min_size=1, max_size=24))
    action: Any = data.draw(st.sampled_from(["raise", "skip", "substitute"]))
    broken = data.draw(st.sets(st.integers(1, len(counts)), max_size=6)) if action != "raise" else set()
    source = Documents(counts, broken)
    size, drop_last = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    feed = Feed(
        source,
        batch_size=size,
        ragged=RAGGED,
        on_error=action,
        drop_last=drop_last,
        workers=data.draw(st.sampled_from([0, 1, 3])),
        depth=data.draw(st.integers(1, 3)),
        verify=data.draw(st.booleans()),
        ids=True,
    )
    for _ in range(2):
        seen = []
        for ids, batch in feed:
            seen.append(ids.tolist())
            check(batch, [source.sample(index) for index in seen[-1]])
            for array in (*batch["t"].values(), *batch["box"].values()):
                array.view(np.uint8)[...] = 0x55
            del batch
        assert seen == reference(source, size, action, drop_last=drop_last)


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("schedule", ["host", *SCHEDULES])
def test_every_framework_and_schedule_gives_the_same_batches_kept_or_dropped(to, schedule):
    source = Documents(lengths(50), broken={3, 20, 21, 49})
    device: Any = schedule if schedule == "host" else SimulatedDevice(schedule)
    feed = Feed(source, batch_size=8, to=to, device=device, ragged=RAGGED, on_error="skip", workers=2)
    kept: list[Any] = []
    for epoch in range(2):
        for batch, rows in zip(feed, reference(source, 8, "skip", drop_last=False), strict=True):
            samples = [source.sample(index) for index in rows]
            check(batch, samples, fixed=to == "jax")
            if len(kept) % 3 == epoch:
                kept.append((batch, samples))
    for batch, samples in kept:
        check(batch, samples, fixed=to == "jax")


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("device", ["host", "simulated:lazy"])
def test_verify_says_nothing_and_its_poison_is_never_in_the_padding(to, device):
    source = Documents(lengths(60))
    feed = Feed(source, batch_size=7, to=to, device=device, ragged=RAGGED, verify=True, depth=1, workers=2)
    for number, batch in enumerate(feed):
        rows = range(7 * number, min(7 * number + 7, 60))
        check(batch, [source.sample(index) for index in rows], fixed=to == "jax")
        del batch


def test_a_shuffled_feed_goes_on_where_its_state_was_taken():
    source = Documents(lengths(40))
    feed, later = (Feed(source, batch_size=6, ragged=RAGGED, shuffle=True, seed=3, ids=True) for _ in range(2))
    batches = iter(feed)
    seen = [next(batches)[0].tolist() for _ in range(3)]
    later.load_state_dict(feed.state_dict())
    for ids, batch in later:
        check(batch, [source.sample(index) for index in ids])
        seen.append(ids.tolist())
    assert sorted(index for ids in seen for index in ids) == list(range(40))


def test_a_sample_that_comes_at_the_second_attempt_leaves_no_trace():
    class Flaky(Documents):
        def __getitem__(self, index):
            sample = self.sample(index)
            if index in self.broken:
                self.broken.discard(index)
                return sample | {"y": np.zeros(2)}  # its tokens are written by then
            return sample

    source = Flaky(lengths(9), broken={2, 5})
    feed = Feed(source, batch_size=4, ragged=RAGGED, on_error=retry(1), workers=2)
    for number, batch in enumerate(feed):
        check(batch, [source.sample(index) for index in range(4 * number, min(4 * number + 4, 9))])
    assert feed.statistics().retried == 2


@pytest.mark.parametrize("kind", ["iterable", "function"])
def test_an_epoch_may_end_inside_a_batch(kind):
    inner = Documents(lengths(10))

    def function(info):
        if info.idx_in_epoch >= 10:
            raise StopIteration
        return inner.sample(info.idx_in_epoch)

    source: Any = function if kind == "function" else [inner.sample(index) for index in range(10)].__iter__()
    batches = list(Feed(source, batch_size=4, ragged=RAGGED, workers=3))
    assert len(batches) == 3
    for number, batch in enumerate(batches):
        check(batch, [inner.sample(index) for index in range(4 * number, min(4 * number + 4, 10))])


# ------------------------------------------------------------ names and shapes


class Pair(NamedTuple):
    left: Any
    right: Any


def test_leaves_are_named_as_in_messages_whatever_they_are_in():
    samples = [{"pair": Pair(np.arange(n), np.float32(n)), "more": (np.ones((n, 2)),)} for n in (0, 2, 1)]
    ragged: Any = {"pair.0": Padded(2), "more.0": Offsets(2)}
    batch = next(iter(Feed(samples, batch_size=3, ragged=ragged)))
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].left["values"].tolist() == [[0, 0], [0, 1], [0, 0]]
    assert batch["more"][0]["offsets"].tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize("spec", [Padded(4), Offsets(4)])
def test_a_sample_that_is_one_array_has_the_name_without_letters(spec):
    batch = next(iter(Feed([np.arange(n) for n in (2, 4, 0)], batch_size=3, ragged={"": spec})))
    values = [[0, 1, 0, 0], [0, 1, 2, 3], [0] * 4] if isinstance(spec, Padded) else [0, 1, 0, 1, 2, 3]
    assert batch["values"].tolist() == values


def test_lists_of_numbers_are_leaves_where_they_are_ragged():
    samples = [{"t": [3, 4], "n": 1}, {"t": [], "n": 2}, {"t": [5], "n": 3}]
    batch = next(iter(Feed(samples, batch_size=3, ragged={"t": Offsets(2)})))
    assert (batch["t"]["values"].tolist(), batch["t"]["offsets"].tolist()) == ([3, 4, 5], [0, 2, 2, 3])
    batch = next(iter(Feed([[1], [2, 3]], batch_size=2, ragged={"": Padded(2)})))
    assert batch["values"].tolist() == [[1, 0], [2, 3]]


def test_an_empty_first_list_says_what_is_missing():
    with pytest.raises(SampleError, match=r"sample 0: leaf 't' is an empty list .* as np.empty\(0, np.int64\)"):
        next(iter(Feed([{"t": []}], batch_size=1, ragged={"t": Padded(2)})))


def test_an_empty_first_sample_fixes_everything_but_its_length():
    batch = next(iter(Feed([np.zeros((n, 2), np.int8) for n in (0, 3)], batch_size=2, ragged={"": Padded(3)})))
    assert (batch["values"].shape, batch["values"].dtype, batch["lengths"].tolist()) == ((2, 3, 2), np.int8, [0, 3])


@pytest.mark.parametrize("name", ["bool", "uint8", "float16", "complex64", "bfloat16"])
def test_every_kind_of_number_is_padded(name):
    dtype = np.dtype(jax.numpy.bfloat16 if name == "bfloat16" else name)
    batch = next(iter(Feed([np.ones(1, dtype)] * 2, batch_size=2, ragged={"": Padded(3, 1)})))
    assert batch["values"].dtype == dtype
    assert np.array_equal(batch["values"], np.ones((2, 3), dtype))


def test_rows_of_arrays_may_be_named_too():
    data = {"x": np.arange(12).reshape(6, 2), "y": np.arange(6)}
    batches = list(Feed(data, batch_size=4, ragged={"x": Offsets(3)}))
    assert [batch["x"]["values"].tolist() for batch in batches] == [list(range(8)), [8, 9, 10, 11]]


def test_what_is_too_long_is_cut_only_where_that_is_asked_for():
    samples = [np.arange(n) for n in (2, 5)]
    for spec in (Padded(3, truncate=True), Offsets(3, truncate=True)):
        batch = next(iter(Feed(samples, batch_size=2, ragged={"": spec})))
        assert batch["values"].reshape(-1)[-3:].tolist() == [0, 1, 2]
    with pytest.raises(SampleError) as caught:
        next(iter(Feed([{"a": {"t": one}} for one in samples], batch_size=2, ragged={"a.t": Padded(3)})))
    assert str(caught.value) == (
        "sample 1: leaf 'a.t' has 5 rows: ragged= allows 3; raise its length there, or cut what is longer with "
        "truncate=True"
    )


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"t": np.zeros((2, 3))}, r"leaf 't' has shape \(2, 3\), the first sample had \('any', 2\)"),
        ({"t": np.zeros(())}, r"leaf 't' has shape \(\), .* only the first dimension of a ragged leaf may differ"),
        ({"t": np.zeros((1, 2), np.float32)}, "leaf 't' has dtype float32, the first sample had float64"),
        ({"u": np.zeros((1, 2))}, "its parts are 'u', the first sample had 't'"),
        ({"t": {"u": np.zeros((1, 2))}}, "its parts are 't.u', the first sample had 't'"),
        ({"t": ["a"]}, "leaf 't' has dtype <U1"),
    ],
)
def test_a_sample_that_differs_in_more_than_its_length_is_refused(sample, message):
    feed = Feed([{"t": np.zeros((1, 2))}, sample], batch_size=2, ragged={"t": Padded(4)})
    with pytest.raises(SampleError, match=message):
        next(iter(feed))


def test_a_leaf_that_is_not_named_is_told_of_ragged():
    with pytest.raises(SampleError, match="or name it in ragged="):
        next(iter(Feed([np.zeros(1), np.zeros(2)], batch_size=2)))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_name_that_no_sample_has_is_an_error_whatever_is_tolerated(on_error):
    feed = Feed(Documents([1, 2]), batch_size=2, ragged={"tt": Padded(3)}, on_error=on_error)
    with pytest.raises(UsageError) as caught:
        next(iter(feed))
    assert str(caught.value) == (
        "ragged= names 'tt', which no sample has: the leaves of a sample are 't', 'box', 'y'; did you mean 't'?"
    )
    assert feed.failures == []
    with pytest.raises(UsageError, match="one array, with the name ''"):
        next(iter(Feed([np.zeros(2)], batch_size=1, ragged={"x": Padded(3)})))


def test_a_number_is_not_ragged():
    with pytest.raises(SampleError, match="leaf 'y' is a number: a ragged leaf has rows"):
        next(iter(Feed(Documents([1]), batch_size=1, ragged={"y": Padded(3)})))


@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", -1), ("uint8", 256), ("int32", 0.5), ("float32", 1e300), ("float64", 1j), ("?", 2)]
)
def test_a_padding_value_that_the_dtype_lacks_is_refused(dtype, value):
    feed = Feed([np.zeros(1, dtype)], batch_size=1, ragged={"": Padded(2, value)}, on_error="skip")
    with pytest.raises(UsageError, match="cannot hold the padding value"):
        next(iter(feed))


@pytest.mark.parametrize(("dtype", "value"), [("float32", 0.1), ("float32", float("nan")), ("f2", float("-inf"))])
def test_a_padding_value_is_rounded_as_the_values_are(dtype, value):
    batch = next(iter(Feed([np.zeros(0, dtype)], batch_size=1, ragged={"": Padded(1, value)})))
    assert np.array_equal(batch["values"][0, 0], np.array(value, dtype), equal_nan=True)


def test_arguments_that_cannot_be_meant_are_refused():
    for make in (lambda: Padded(0), lambda: Offsets(-1), lambda: Offsets(1.5), lambda: Padded(None)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the length of a ragged leaf is"):
            make()
    with pytest.raises(UsageError, match="padding value is 'x'"):
        Padded(2, "x")  # type: ignore[arg-type]
    for ragged in ({"t": 5}, ["t"], Padded(3)):
        with pytest.raises(UsageError, match="give a dict of leaf names"):
            Feed(Documents([1]), batch_size=1, ragged=ragged)  # type: ignore[arg-type]
    assert interlock.Padded is Padded


# ------------------------------------------------------------ frameworks that want a fixed shape


def test_offsets_may_have_a_shape_that_does_not_tell_their_number():
    source = Documents(lengths(20))
    feed = Feed(source, batch_size=5, ragged=RAGGED | {"box": Offsets(BOXES, fixed=True)}, depth=1, workers=1)
    for number, batch in enumerate(feed):
        check(batch, [source.sample(index) for index in range(5 * number, 5 * number + 5)], fixed=True)
        batch["box"]["values"][...] = 9
        del batch


def test_jax_compiles_one_function_for_all_batches():
    """Wide values are unpacked by a compiled function, one for a shape."""
    source = Documents(lengths(64, seed=5))
    feed = Feed(source, batch_size=4, to="jax", ragged=RAGGED)
    batches = iter(feed)
    next(batches)
    compiled = _jax_unpack._compiled.cache_info().misses
    assert {batch["box"]["values"].shape for batch in batches} == {(4 * BOXES, 2)}
    assert _jax_unpack._compiled.cache_info().misses == compiled


def test_a_sharding_splits_padded_leaves_and_refuses_offsets():
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    source = Documents([2, 0, 3, 1])
    ragged: Any = {"t": Padded(LENGTH, FILL), "box": Padded(BOXES)}
    batch = next(iter(Feed(source, batch_size=4, to=sharding, ragged=ragged)))
    assert batch["t"]["values"].sharding.is_equivalent_to(sharding, 2)
    assert batch["t"]["lengths"].tolist() == [2, 0, 3, 1]
    with pytest.raises(UsageError, match=r"leaf 'box' has offsets.*use Padded"):
        Feed(source, batch_size=4, to=sharding, ragged=RAGGED)


def test_jax_counts_rows_in_32_bits():
    with pytest.raises(UsageError, match="up to 4,294,967,296 rows of ragged leaf 't': JAX counts them in 32 bits"):
        Feed(Documents([1]), batch_size=1 << 16, to="jax", ragged={"t": Offsets(1 << 16)})


# ------------------------------------------------------------ what else counts


def test_statistics_count_what_the_consumer_got():
    source = Documents([3, 0, 6, 2])
    feed = Feed(source, batch_size=4, ragged=RAGGED)
    batch = next(iter(feed))
    arrays = (*batch["t"].values(), *batch["box"].values(), batch["y"])
    assert feed.statistics().nbytes == sum(array.nbytes for array in arrays)


def test_only_used_bytes_are_to_travel():
    layout = lay_out({"t": np.zeros((0, 1 << 16), np.float32), "y": 0}, 4, {"t": Offsets(8)})
    values, offsets, y = layout.leaves
    assert layout.runs((5, 5, 4)) == [
        (0, 5 << 18),
        (offsets.offset_bytes, y.offset_bytes - offsets.offset_bytes + 32),
    ]
    assert layout.runs((0, 5, 4))[0][0] == offsets.offset_bytes
    assert len(layout.runs((32, 5, 4))) == 1
    fixed = lay_out({"t": np.zeros((0, 1 << 16), np.float32)}, 4, {"t": Offsets(8, fixed=True)})
    assert fixed.runs((32, 5)) == []
    assert values.offset_bytes == 0


def test_a_layout_is_plain_data_and_rows_are_written_by_whoever_sees_the_slot():
    source = Documents([2, 5, 0])
    layout = lay_out(source.sample(0), 3, RAGGED)
    slot: Any = bytearray(b"\xff" * layout.size_bytes)

    class Memory:
        def view(self):
            return memoryview(slot)

    memory: Any = Memory()
    other = pickle.loads(pickle.dumps(layout))  # noqa: S301 - made here
    assert (other, other.ragged, Layout.ragged) == (layout, True, False)
    for row in (2, 0, 1):
        other.write(other.views(memory), row, source.sample(row))
    trim = layout.settle(lambda: layout.views(memory), 3, None)
    shown = [view[:first] for view, first in zip(layout.views(memory), trim, strict=True)]
    check(layout.structure.rebuild(shown), [source.sample(row) for row in range(3)])


def test_a_row_that_nobody_wrote_is_never_taken_for_one():
    layout = lay_out({"t": np.zeros(1)}, 3, {"t": Offsets(4)})
    views = [np.zeros(12), np.array([0, 2, -1, 3])]
    with pytest.raises(InternalError, match="was not written"):
        layout.settle(lambda: views, 3, None)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_that_could_write_into_the_slot_is_not_offered_it(workers):
    offered: list[Any] = []

    def doubled(sample, out):
        offered.append(out)
        return sample | {"t": sample["t"] * 2}

    source = Documents(lengths(20))
    more = Stage(lambda sample: sample | {"t": sample["t"] + 1}, workers=2, name="more")
    feed = Feed(source, batch_size=6, ragged=RAGGED, workers=workers, stages=[more, doubled])
    for number, batch in enumerate(feed):
        samples = [source.sample(index) for index in range(6 * number, min(6 * number + 6, 20))]
        check(batch, [sample | {"t": (sample["t"] + 1) * 2} for sample in samples])
    assert len(offered) == 20
    assert set(map(type, offered)) == {type(None)}
