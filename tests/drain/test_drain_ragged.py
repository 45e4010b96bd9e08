"""Outputs whose rows differ in their first dimension: as programs hold them, in every sink, bit for bit."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from interlock import Drain, Feed, Offsets, Padded
from interlock._core._fence import Fence
from interlock.devices import SimulatedDevice
from interlock.drain import (
    Argmax,
    Cast,
    Crop,
    Ragged,
    RaggedRows,
    TopK,
    compact_sink,
    merge_sink,
    open_sink,
    read_status,
    verify_sink,
)
from interlock.drain._lane import Lane
from interlock.drain._outputs import leaves_of
from interlock.drain._schema import Column
from interlock.drain._sinks._npy import NpySink
from interlock.errors import CorruptionError, SinkConflictError, UsageError
from interlock.feed.sources import ArrowSource, ParquetSource
from interlock.lowlevel import DeviceArray

SCHEMES = ["parquet", "arrow", "npy", "safetensors", "zarr", "webdataset", "delta"]
LENGTHS = [3, 0, 5, 1, 2]
RANDOM = np.random.default_rng(0)
ROWS = [RANDOM.random((length, 4), np.float32) for length in LENGTHS]
FLAT, ENDS = np.concatenate(ROWS), np.cumsum([0, *LENGTHS])
PADDED = np.full((5, 7, 4), np.nan, np.float32)
for _row, _values in enumerate(ROWS):
    PADDED[_row, : len(_values)] = _values

WAYS: dict[str, Any] = {
    "numpy padded": lambda: Ragged(PADDED, lengths=LENGTHS),
    "numpy offsets": lambda: Ragged(FLAT, offsets=ENDS),
    "numpy flat lengths": lambda: Ragged(FLAT, lengths=np.array(LENGTHS, np.uint8), flat=True),
    "numpy list": lambda: Ragged(ROWS),
    "padded of a feed": lambda: {"values": PADDED, "lengths": np.array(LENGTHS, np.int32)},
    "offsets of a feed": lambda: {"values": np.concatenate([FLAT, np.ones((9, 4), np.float32)]), "offsets": ENDS},
    "rows": lambda: RaggedRows(FLAT, ENDS),
    "torch padded": lambda: Ragged(torch.from_numpy(PADDED).requires_grad_(), lengths=torch.tensor(LENGTHS)),
    "torch list": lambda: Ragged([torch.from_numpy(row) for row in ROWS]),
    "torch jagged": lambda: torch.nested.nested_tensor_from_jagged(torch.from_numpy(FLAT), torch.from_numpy(ENDS)),
    "torch jagged with holes": lambda: torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(PADDED.reshape(35, 4)), torch.arange(0, 36, 7), lengths=torch.tensor(LENGTHS)
    ),
    "jax padded": lambda: Ragged(jnp.array(PADDED), lengths=jnp.array(LENGTHS)),
    "jax flat": lambda: Ragged(jnp.array(FLAT), offsets=jnp.array(ENDS)),
    "jax list": lambda: Ragged(tuple(jnp.array(row) for row in ROWS)),
}


class Kept(dict[Any, Any]):
    """A sink that keeps copies of rows by id; ragged ones as arrays."""

    def __call__(self, ids, arrays):
        for row, one in enumerate(ids.tolist()):
            self[one] = {name: column[row].copy() for name, column in arrays.items()}


def read(sink: str) -> dict[Any, dict[str, Any]]:
    """Read a sink by its own format: id to row; an id that is there twice is a failure."""
    form, folder = open_sink(sink)
    found: dict[Any, dict[str, Any]] = {}
    listed = getattr(form, "listed", lambda root: {path.name for path in root.iterdir() if path.name[0] == "p"})
    for shard in (folder / name for name in sorted(listed(folder))):
        ids = form.read_shard(shard).ids.tolist()
        columns = form.read_rows(shard, range(len(ids)))
        assert not set(ids) & set(found)
        found |= {one: {name: column[row] for name, column in columns.items()} for row, one in enumerate(ids)}
    return found


def same(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


def on_device(values: Any, device: Any) -> DeviceArray:
    """Return an array that a device computes on its default stream."""
    values = np.asarray(values)
    array = DeviceArray(device, device.allocate(values.nbytes), values.shape, values.dtype.name, Fence.EMPTY)
    write(array, values.tobytes())
    return replace(array, ready=device.record(device.stream("default")))


def write(array: DeviceArray, content: bytes) -> None:
    """Have a device write to an array, behind all that it was told before."""
    device: Any = array.device

    def run() -> None:
        array.memory.view()[:] = content

    device.launch(device.stream("default"), run, writes=[array.memory], name="program")


# ------------------------------------------------------------ ways to put, and to store


@pytest.mark.parametrize(
    "options", [{}, {"budget_bytes": 130, "shard_bytes": 80}, {"verify": True, "borrow": True}], ids=str
)
@pytest.mark.parametrize("way", WAYS)
def test_rows_come_through_as_they_were_put(way, options):
    kept = Kept()
    with Drain(kept, **options) as drain:
        drain.put(range(5), {"hidden": WAYS[way](), "x": np.arange(5)})
    assert all(same(kept[row]["hidden"], ROWS[row]) for row in range(5))
    assert [int(kept[row]["x"]) for row in range(5)] == list(range(5))


@pytest.mark.parametrize("way", ["numpy padded", "torch jagged", "jax list"])
def test_every_sink_holds_them_and_what_is_put_twice_is_dropped(every_sink, columns, way):
    with Drain(every_sink) as drain:
        drain.put(list("abcde"), WAYS[way]())
        drain.put(list("cab"), Ragged([ROWS[2], ROWS[0], ROWS[1]]))
        assert drain.statistics().rows_duplicate == 3
    stored = columns(every_sink)
    assert stored["id"].tolist() == list("abcde")
    assert all(np.array_equal(np.reshape(one, (-1, 4)), row) for one, row in zip(stored["output"], ROWS, strict=True))
    assert verify_sink(every_sink).ok


@settings(max_examples=25, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    inner=st.sampled_from([(), (3,), (2, 1)]),
    dtype=st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float64"]),
    layout=st.sampled_from(["padded", "flat", "list"]),
    puts=st.integers(1, 3),
    budget_bytes=st.sampled_from([64, 500, 1 << 20]),
    shard_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_any_rows_come_back(tmp_path_factory, scheme, lengths, inner, dtype, layout, puts, budget_bytes, shard_bytes):
    sink = f"{scheme}:{tmp_path_factory.mktemp('any') / 'out'}"
    assume(dtype not in getattr(open_sink(sink)[0], "lacks", ()))
    random = np.random.default_rng(len(lengths))
    rows = [random.integers(0, 2, (length, *inner)).astype(dtype) for length in lengths]
    with Drain(sink, budget_bytes=budget_bytes, shard_bytes=shard_bytes) as drain:
        for some in np.array_split(np.arange(len(rows)), puts):
            if not some.size:
                continue
            arrays = [rows[at] for at in some]
            put: Any = Ragged(arrays)
            if layout == "flat":
                put = Ragged(np.concatenate(arrays), lengths=[len(one) for one in arrays], flat=True)
            elif layout == "padded":
                values = np.ones((len(some), 7, *inner), dtype)
                for at, one in enumerate(arrays):
                    values[at, : len(one)] = one
                put = Ragged(values, lengths=[len(one) for one in arrays])
            drain.put(some, {"r": put, "x": some})
    stored = read(sink)
    assert sorted(stored) == list(range(len(rows)))
    assert all(same(stored[at]["r"], row) and stored[at]["x"] == at for at, row in enumerate(rows))
    assert verify_sink(sink).ok


def test_a_function_gets_rows_that_it_cannot_write_to_and_can_put(tmp_path):
    with Drain(f"npy:{tmp_path / 'out'}") as behind:

        def forward(ids, arrays):
            rows = arrays["hidden"]
            assert isinstance(rows, RaggedRows)
            assert (len(rows), rows.shape, rows.dtype.name) == (5, (5, None, 4), "float32")
            assert [len(row) for row in rows] == rows.lengths.tolist() == LENGTHS
            with pytest.raises(ValueError, match="read-only"):
                rows.values[0] = 0
            with pytest.raises(ValueError, match="read-only"):
                rows.offsets[0] = 1
            behind.put(ids, arrays)

        with Drain(forward) as drain:
            drain.put(range(5), {"hidden": Ragged(PADDED, lengths=LENGTHS)})
    stored = read(f"npy:{tmp_path / 'out'}")
    assert all(same(stored[row]["hidden"], ROWS[row]) for row in range(5))


@pytest.mark.parametrize("spec", [Padded(8, value=-1), Offsets(8), Offsets(8, fixed=True)], ids=str)
@pytest.mark.parametrize(("scheme", "source"), [("parquet", ParquetSource), ("arrow", ArrowSource)])
def test_what_a_feed_yields_is_stored_as_it_was_and_fed_again(tmp_path, scheme, source, spec):
    samples = [{"hidden": row, "label": at} for at, row in enumerate(ROWS)]
    with Drain(f"{scheme}:{tmp_path / 'out'}") as drain:
        for number, batch in enumerate(Feed(samples, batch_size=2, ragged={"hidden": spec})):
            rows = len(batch["label"])
            drain.put(range(2 * number, 2 * number + rows), dict(batch.items()))
    (shard,) = (tmp_path / "out").glob(f"*.{scheme}")
    again = source(str(shard), ragged=["hidden"])
    assert all(same(again[at]["hidden"], row) and again[at]["label"] == at for at, row in enumerate(ROWS))
    (batch,) = Feed(again, batch_size=5, ragged={"hidden": Offsets(5)})
    assert same(batch["hidden"]["values"], FLAT)
    assert batch["hidden"]["offsets"].tolist() == ENDS.tolist()


# ------------------------------------------------------------ values as at the put


def test_arrays_and_lengths_may_be_overwritten_right_after_put():
    values, lengths, flat = PADDED.copy(), np.array(LENGTHS), FLAT.copy()
    arrays = [row.copy() for row in ROWS]
    kept = Kept()
    with Drain(kept) as drain:
        drain.put(
            range(5), {"p": Ragged(values, lengths=lengths), "f": Ragged(flat, offsets=ENDS), "l": Ragged(arrays)}
        )
        for one in (values, flat, *arrays):
            one.fill(-1)
        lengths.fill(7)
    assert all(same(kept[row][name], ROWS[row]) for row in range(5) for name in "pfl")


@pytest.mark.parametrize("schedule", ["lazy", "eager", "starve:drain", "random:3"])
@pytest.mark.parametrize("budget_bytes", [1 << 20, 300])
def test_device_values_are_those_at_the_put_whatever_the_schedule(schedule, budget_bytes):
    """Rows of 0 to 80 bytes, some of which fit half of the smaller budget and some do not fit at all."""
    device = SimulatedDevice(schedule)
    kept = Kept()
    rows = [*ROWS, np.full((30, 4), 7, np.float32)]
    lengths = [len(row) for row in rows]
    flat, ends = on_device(np.concatenate(rows), device), on_device(np.cumsum([0, *lengths]), device)
    padded = np.full((6, 30, 4), np.nan, np.float32)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    values, told = on_device(padded, device), on_device(np.array(lengths, np.int32), device)
    with Drain(kept, budget_bytes=budget_bytes) as drain:
        outputs = {"f": Ragged(flat, offsets=ends), "k": Ragged(flat, lengths=lengths, flat=True)}
        drain.put(range(6), {**outputs, "p": Ragged(values, lengths=told), "h": Ragged(values, lengths=lengths)})
        for one in (flat, ends, values, told):
            write(one, b"\xff" * one.memory.size_bytes)
    assert all(same(kept[at][name], row) for at, row in enumerate(rows) for name in "fkph")


def test_lengths_on_a_device_are_not_waited_for():
    device = SimulatedDevice("lazy")
    kept = Kept()
    with Drain(kept) as drain:
        flat, ends = on_device(FLAT, device), on_device(ENDS, device)
        values, told = on_device(PADDED, device), on_device(np.array(LENGTHS), device)
        ticket = drain.put(range(5), {"f": Ragged(flat, offsets=ends), "p": Ragged(values, lengths=told)})
        assert not ticket.landed
        assert drain.statistics().host_syncs == 0
    assert all(same(kept[row][name], ROWS[row]) for row in range(5) for name in "fp")


def test_offsets_on_a_device_are_waited_for_where_a_put_must_be_split():
    device = SimulatedDevice("eager")
    kept = Kept()
    with Drain(kept, budget_bytes=200) as drain:
        drain.put(range(5), Ragged(on_device(FLAT, device), offsets=on_device(ENDS, device)))
        assert drain.statistics().host_syncs == 1
    assert all(same(kept[row]["output"], ROWS[row]) for row in range(5))


@pytest.mark.parametrize("repeats", ["same", "first"])
def test_rows_that_came_again_are_waited_for_on_a_device_and_not_on_the_host(repeats):
    device = SimulatedDevice("lazy")
    with Drain(Kept(), repeats=repeats) as drain:
        for _ in range(2):
            drain.put(range(5), {"h": Ragged(ROWS), "x": np.arange(5)})
        assert drain.statistics().host_syncs == 0
        drain.put(range(4, 9), {"h": Ragged(on_device(FLAT, device), offsets=ENDS), "x": np.arange(5)})
        assert drain.statistics().host_syncs == 1


def test_padding_that_no_row_of_the_put_needs_does_not_leave_its_device():
    """JAX compiles for each length, so there a sixteenth of the padding may."""
    for values, row_bytes in ((torch.zeros(2, 1000, 4), 5 * 16), (jnp.zeros((2, 1000, 4)), 63 * 16)):
        (leaf,) = leaves_of(Ragged(values, lengths=[5, 0]), 2)
        assert leaf.row_sizes() == row_bytes


def test_shards_are_filled_by_the_bytes_of_their_rows(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    lengths = [10, 300, *[1] * 20]  # and 16 bytes for the id and where a row begins
    with Drain(sink, shard_bytes=200) as drain:
        drain.put(range(22), Ragged([np.zeros(length, np.int8) for length in lengths]))
    form, folder = open_sink(sink)
    shards = [form.read_shard(path).ids.tolist() for path in sorted(folder.glob("part-*"))]
    assert shards == [[0], [1], [*range(2, 13)], [*range(13, 22)]]


# ------------------------------------------------------------ what is wrong


def jagged() -> Any:
    return torch.nested.nested_tensor_from_jagged(torch.zeros(6, 3), torch.tensor([0, 2, 4, 6]))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda: Ragged(PADDED, lengths=[3, -1, 0, 0, 0]), r"row 1 of output 'h' has -1 values: so say its lengths"),
        (lambda: Ragged(PADDED, lengths=[3, 8, 0, 0, 0]), r"row 1 of output 'h' has 8 values, and there is room for 7"),
        (lambda: Ragged(PADDED, lengths=[3, 1]), r"the lengths of output 'h' have the shape \(2,\): there are 5 ids"),
        (lambda: Ragged(PADDED, lengths=np.ones(5)), r"the lengths of output 'h' are float64; they are integers"),
        (lambda: Ragged(PADDED[:4], lengths=LENGTHS), r"the values of output 'h' have the shape \(4, 7, 4\)"),
        (lambda: Ragged(FLAT, lengths=LENGTHS), r"values of output 'h' have the shape \(11, 4\).*with flat=True"),
        (lambda: Ragged(FLAT[:-1], lengths=LENGTHS, flat=True), r"rows of output 'h' have 11 values, and there are 10"),
        (
            lambda: Ragged(np.ones(12), lengths=LENGTHS, flat=True),
            r"rows of output 'h' have 11 values, and there are 12",
        ),
        (lambda: Ragged(FLAT[:-1], offsets=ENDS), r"rows of output 'h' have 11 values, and there are 10: .* offsets"),
        (lambda: Ragged(FLAT, offsets=ENDS + 1), r"the offsets of output 'h' begin with 1; the first row begins at 0"),
        (
            lambda: Ragged(FLAT, offsets=[0, 3, 2, 5, 6, 6]),
            r"row 1 of output 'h' has -1 values: its offsets are 3 and 2",
        ),
        (lambda: Ragged(FLAT, offsets=LENGTHS), r"offsets of output 'h' have the shape \(5,\): .* one more than rows"),
        (
            lambda: Ragged(FLAT, lengths=[*[2**62] * 4, 11], flat=True),  # whose sum wraps to 11
            r"row 0 of output 'h' has 4611686018427387904 values, and there are 11",
        ),
        (
            lambda: Ragged(PADDED, lengths=[3, [0, 5], 1, 2, 1]),
            r"the lengths of output 'h' are no numbers: .*; give an array of integers",
        ),
        (lambda: Ragged(ROWS[:4]), r"output 'h' is a list of 4 arrays, and there are 5 ids"),
        (lambda: Ragged([*ROWS[:4], ROWS[4].astype(int)]), r"row 4 of output 'h' is int64 of shape \(2, 4\)"),
        (lambda: Ragged([*ROWS[:4], ROWS[4][:, :2]]), r"row 4 of output 'h' is float32 of shape \(2, 2\): row 0 is"),
        (lambda: Ragged([*ROWS[:4], torch.ones(2, 4)]), r"row 4 of output 'h' is torch.float32"),
        (lambda: Ragged([*ROWS[:4], [1.0]]), r"output 'h' is a builtins.list"),
        (
            lambda: Ragged(np.ones((5, 3, 0)), lengths=[0] * 5),
            r"output 'h' has rows of shape \(0,\): they hold nothing",
        ),
        (lambda: Ragged(np.ones((5, 3), complex), lengths=[0] * 5), r"output 'h' has the dtype complex128"),
        (lambda: jagged().transpose(1, 2), r"a nested tensor that is transposed cannot be drained"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)] * 5),
            r"nested tensor of layout torch.strided cannot be dra",
        ),
        (jagged, r"the offsets of output 'h' have the shape \(4,\): there are 5 ids"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_does_not_fit_is_refused_by_put_and_the_drain_goes_on(output, message):
    kept = Kept()
    with Drain(kept) as drain:
        with pytest.raises(UsageError, match=message):
            drain.put(range(5), {"h": output()})
        drain.put(range(5), {"h": Ragged(ROWS)})
    assert len(kept) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1], "offsets": [0, 1]}, "both lengths and offsets"),
        ({"offsets": [0, 1], "flat": True}, "flat=True is for values with lengths"),
        ({}, "ragged values of ndarray have neither lengths nor offsets"),
    ],
)
def test_arguments_that_say_nothing_or_two_things_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Ragged(np.ones(1), **arguments)


@pytest.mark.parametrize("arguments", [{"lengths": [1, 2]}, {"offsets": [0, 1, 3]}, {"lengths": [1, 2], "flat": True}])
def test_a_list_has_its_lengths_and_no_others(arguments):
    """They would say what of each array is padding, which would be stored."""
    with pytest.raises(UsageError, match=r"ragged values in a list have (lengths|offsets) besides: .*array\[:length\]"):
        Ragged([np.ones(3), np.ones(3)], **arguments)


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (
            lambda on: Ragged(on(PADDED), lengths=on([3, -1, 0, 0, 0])),
            r"row 1 of output 'h' has -1 values, among 5 rows",
        ),
        (
            lambda on: Ragged(on(PADDED), lengths=on([3, 8, 0, 0, 0])),
            r"room for 7, among 5 rows \(5 to 9\).*put tells it",
        ),
        (lambda on: Ragged(on(FLAT), offsets=on(ENDS + 1)), r"the offsets of output 'h' begin with 1"),
        (lambda on: Ragged(on(FLAT), lengths=on([1, 1, 1, 1, 1]), flat=True), r"have 5 values, and there are 11"),
    ],
)
def test_lengths_on_a_device_that_do_not_fit_end_the_drain_and_are_not_committed(sink, put, message):
    device = SimulatedDevice("lazy")
    drain = Drain(sink)
    drain.put(range(5), {"h": Ragged(ROWS)})
    drain.flush()
    drain.put(range(5, 10), {"h": put(lambda values: on_device(values, device))})
    with pytest.raises(UsageError, match=message):
        drain.close()
    assert sorted(read(sink)) == list(range(5))
    assert verify_sink(sink).ok


def test_padding_may_be_nan_and_a_value_may_not():
    rows = [row.copy() for row in ROWS]
    rows[2][4, 3] = np.nan
    values = PADDED.copy()
    values[2, 4, 3] = np.nan
    kept = Kept()
    with Drain(kept, nan="fail") as drain:
        drain.put(range(5), {"p": Ragged(values, lengths=LENGTHS), "x": np.arange(5)})
        drain.flush()
        assert drain.statistics().rows_failed == 1
        drain.put([9], {"p": Ragged([ROWS[1]]), "x": np.array([9])})  # no value at all is none that is NaN
    assert sorted(kept) == [0, 1, 3, 4, 9]
    assert all(same(kept[row]["p"], rows[row]) for row in (0, 1, 3, 4))


def test_a_change_of_borrowed_rows_is_found(tmp_path, monkeypatch):
    land = Lane._land
    values = PADDED.copy()

    def changed(writer, job, rows):
        values[3, 0] += 1
        return land(writer, job, rows)

    monkeypatch.setattr(Lane, "_land", changed)
    with pytest.raises(CorruptionError, match=r"output 'h' of put 0 .* was wrong when it had landed"):  # noqa: SIM117
        with Drain(f"npy:{tmp_path / 'out'}", verify=True, borrow=True) as drain:
            drain.put(range(5), {"h": Ragged(values, lengths=LENGTHS)})


# ------------------------------------------------------------ ids that come again, ranks, shards


@pytest.mark.parametrize("other", [ROWS[0][:2], ROWS[0] + 1, ROWS[3]], ids=["shorter", "other values", "other length"])
def test_another_row_of_an_id_is_refused(sink, other):
    with Drain(sink) as drain:
        drain.put(range(5), {"h": Ragged(ROWS)})
        with pytest.raises(
            UsageError, match=r"id 0 was put twice with different values in output 'h': row 1 of this put"
        ):
            drain.put([1, 0], {"h": Ragged([ROWS[1], other])})
        drain.put([9], {"h": Ragged([other])})
    assert same(read(sink)[9]["h"], other)


def test_rows_that_came_again_are_left_out_of_a_put_of_any_kind(sink):
    with Drain(sink, repeats="first") as drain:
        drain.put([0, 1], {"h": Ragged(ROWS[:2])})
        for way in WAYS.values():
            drain.put(range(5), {"h": way()})
    assert all(same(read(sink)[row]["h"], ROWS[row]) for row in range(5))


def test_ranks_settle_merge_and_compact_them(every_sink):
    with ExitStack() as opened:
        for rank in range(2):
            drain = opened.enter_context(Drain(every_sink, rank=(rank, 2), shard_bytes=100))
            ids = [0, 1 + rank, 3 + rank]
            drain.put(ids, {"h": Ragged([ROWS[one] for one in ids]), "x": np.ones(3)})
    assert read_status(every_sink).rows_committed == 5
    merge_sink(every_sink)
    assert compact_sink(every_sink).shards == 1
    assert all(same(read(every_sink)[row]["h"], ROWS[row]) for row in range(5))
    assert verify_sink(every_sink).ok


def test_ranks_that_differ_in_the_length_of_a_row_are_in_conflict(sink):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    first.put([0, 1], {"h": Ragged(ROWS[:2])})
    second.put([2, 1], {"h": Ragged([ROWS[2], ROWS[0]])})
    first.close()
    with pytest.raises(SinkConflictError, match="id 1 has two values of output 'h'"):
        second.close()


# ------------------------------------------------------------ what the sink knows of them


def test_the_schema_says_that_rows_have_any_length_and_later_runs_must_have_that_too(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put(range(5), {"h": Ragged(ROWS)})
    schema = json.loads((tmp_path / "out/_interlock/run.json").read_bytes())["schema"]
    assert schema == [{"name": "h", "dtype": "float32", "shape": [None, 4]}]
    with Drain(sink) as drain:
        with pytest.raises(
            UsageError, match=r"'h' has rows of shape \(7, 4\): the rows before have \(any, 4\); .*Ragged"
        ):
            drain.put(range(5, 10), {"h": PADDED})
        with pytest.raises(UsageError, match=r"'h' has rows of shape \(any,\): the rows before have \(any, 4\)"):
            drain.put([5], {"h": Ragged([np.ones(3, np.float32)])})
        drain.put([5], {"h": Ragged([ROWS[0]])})
    assert len(read(sink)) == 6


def test_a_column_of_any_kind_comes_back_from_its_json():
    for shape in ((), (3,), (None,), (None, 2)):
        column = Column("x", "int8", shape)
        assert Column.from_json(json.loads(json.dumps(column.as_json()))) == column
        assert column.is_ragged == (None in shape)


def test_a_sink_that_does_not_say_that_it_holds_them_refuses_them(tmp_path, monkeypatch):
    monkeypatch.delattr(NpySink, "ragged")
    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        with pytest.raises(UsageError, match=r"output 'h' has rows of any length, and npy: does not hold those"):
            drain.put(range(5), {"h": Ragged(ROWS)})
        drain.put(range(5), {"h": np.ones(5)})


def test_outputs_that_would_be_stored_under_one_name_are_refused():
    with Drain(Kept()) as drain, pytest.raises(UsageError, match=r"two outputs would be called 'h\.values'"):
        drain.put(range(5), {"h": Ragged(ROWS), "h.values": np.ones(5)})


# ------------------------------------------------------------ reductions


@pytest.mark.parametrize("way", ["numpy padded", "numpy list", "torch jagged", "jax flat", "jax list"])
def test_values_are_reduced_each_by_itself(way):
    kept = Kept()
    reduced: dict[str, Any] = {"a": Cast("float16"), "b": TopK(2), "c": Argmax("uint8")}
    with Drain(kept, outputs=reduced) as drain:
        drain.put(range(5), {name: WAYS[way]() for name in "abc"})
    for row, values in enumerate(ROWS):
        assert same(kept[row]["a"], values.astype(np.float16))
        order = np.argsort(-values, axis=1)[:, :2]
        assert same(kept[row]["b.indices"], order.astype(np.int32))
        assert same(kept[row]["b.values"], np.take_along_axis(values, order, 1))
        assert same(kept[row]["c"], values.argmax(1).astype(np.uint8))


@pytest.mark.parametrize("reduction", [TopK(1), Argmax()])
def test_the_axis_that_differs_is_not_reduced(reduction):
    with Drain(Kept(), outputs={"h": reduction}) as drain:
        for output in (Ragged(np.ones((2, 3)), lengths=[1, 2]), Ragged([np.ones(2), np.ones(3)])):
            with pytest.raises(UsageError, match="its last axis is the one that differs from row to row"):
                drain.put([0, 1], {"h": output})


def test_rows_of_any_length_are_not_cropped():
    message = "the first axis that it crops is the one that differs from row to row"
    with Drain(Kept(), outputs={"h": Crop(slice(1))}) as drain, pytest.raises(UsageError, match=message):
        drain.put(range(5), {"h": Ragged(PADDED, lengths=LENGTHS)})


def test_no_rows_at_all_are_nothing():
    with Drain(Kept()) as drain:
        drain.put([], Ragged([]))
        drain.put([], Ragged(np.ones((0, 3)), lengths=[]))
        drain.put([0], Ragged([np.ones(1)]))
        assert drain.statistics().rows_put == 1
