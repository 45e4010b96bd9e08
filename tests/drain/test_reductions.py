"""`outputs=`: what leaves the device is less, computed there, the same whichever framework holds the array."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from interlock.devices import SimulatedDevice
from interlock.drain import Argmax, Cast, Crop, Drain, Quantize, TopK, open_sink, read_status
from interlock.errors import SinkConflictError, UsageError
from interlock.lowlevel import DeviceArray

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.permuted(np.arange(12 * 40, dtype=np.float32).reshape(12, 40) - 200, axis=1)
FIELD = RANDOM.random((12, 3, 5), np.float32) * 1e5  # beyond float16 in places


def to_torch(values):
    return torch.from_numpy(values.copy()).requires_grad_()


MAKERS: dict[str, Any] = {"numpy": np.array, "torch": to_torch, "jax": jnp.array}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


class Kept:
    """A sink that keeps copies."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}

    def __call__(self, _ids, arrays):
        self.columns = {name: array.copy() for name, array in arrays.items()}


def drained(outputs, values, **options):
    kept = Kept()
    with Drain(kept, outputs=outputs, **options) as drain:
        drain.put(np.arange(12), values)
    return kept.columns


@pytest.mark.parametrize("borrow", [False, True])
def test_the_largest_are_kept_in_order_with_their_places(make, borrow):
    columns = drained({"logits": TopK(5)}, {"logits": make(LOGITS), "x": make(FIELD)}, borrow=borrow)
    assert list(columns) == ["logits.values", "logits.indices", "x"]
    order = np.argsort(-LOGITS, axis=1)[:, :5]
    np.testing.assert_array_equal(columns["logits.indices"], order)
    np.testing.assert_array_equal(columns["logits.values"], np.take_along_axis(LOGITS, order, 1))
    assert (columns["logits.values"].dtype, columns["logits.indices"].dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(columns["x"], FIELD)


@pytest.mark.parametrize("count", [1, 40])
def test_one_and_all_of_the_largest(make, count):
    columns = drained({"output": TopK(count)}, make(LOGITS))
    np.testing.assert_array_equal(columns["output.values"], -np.sort(-LOGITS, axis=1)[:, :count])


def test_rows_of_higher_rank_lose_or_shorten_their_last_axis(make):
    columns = drained({"f": Argmax("uint8"), "g": TopK(2)}, {"f": make(FIELD), "g": make(FIELD)})
    np.testing.assert_array_equal(columns["f"], FIELD.argmax(-1))
    assert (columns["f"].dtype, columns["f"].shape, columns["g.values"].shape) == (np.uint8, (12, 3), (12, 3, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_a_cast_rounds_as_its_framework_does_and_too_large_is_infinite(make, dtype):
    columns = drained({"a.b": Cast(dtype)}, {"a": {"b": make(FIELD)}})
    wanted = np.dtype(dtype if dtype == "float16" else getattr(ml_dtypes, dtype))
    with np.errstate(over="ignore"):
        expected = FIELD.astype(wanted)
    assert columns["a.b"].dtype == wanted
    assert columns["a.b"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("maker", ["torch", "numpy", "jax"])
def test_narrow_floats_have_a_largest_too(maker):
    values = np.array([[1.0, 4.0, 2.0], [9.0, -1.0, 3.0]])
    narrow = {
        "torch": torch.tensor(values, dtype=torch.bfloat16),
        "numpy": values.astype(ml_dtypes.bfloat16),
        "jax": jnp.array(values, jnp.bfloat16),
    }[maker]
    kept = Kept()
    with Drain(kept, outputs={"output": TopK(2)}) as drain:
        drain.put([0, 1], narrow)
    assert kept.columns["output.values"].astype(np.float32).tolist() == [[4.0, 2.0], [9.0, 3.0]]
    assert kept.columns["output.indices"].tolist() == [[1, 2], [0, 2]]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_values_of_foreign_byte_order_are_compared_as_they_are(dtype):
    """And not as float32, which holds neither of these apart."""
    values = np.array([[2**53 - 2, 2**53 - 1, 5], [9, 2**53 - 1, 2**53 - 2]], dtype)
    kept = Kept()
    with Drain(kept, outputs={"a": Argmax(), "k": TopK(2)}) as drain:
        drain.put([0, 1], dict.fromkeys("ak", values.astype(values.dtype.newbyteorder("S"))))
    assert kept.columns["a"].tolist() == [1, 1]
    assert kept.columns["k.indices"].tolist() == [[1, 0], [1, 2]]
    assert kept.columns["k.values"].tolist() == [[2**53 - 1, 2**53 - 2]] * 2


@pytest.mark.parametrize("reduction", [Cast("float32"), Quantize()])
def test_no_imaginary_part_is_left_out_unsaid(make, reduction):
    message = r"output 'output' cannot be put through .*its values are .*complex64; put its real and imaginary parts"
    with Drain(Kept(), outputs={"output": reduction}) as drain, pytest.raises(UsageError, match=message):
        drain.put([0], make(np.array([[1 + 2j, 3j]], np.complex64)))


def test_nan_counts_as_the_largest(make):
    values = np.array([[1.0, np.nan, 2.0]], np.float32)
    kept = Kept()
    with Drain(kept, outputs={"k": TopK(2), "a": Argmax()}) as drain:
        drain.put([0], {"k": make(values), "a": make(values)})
    assert kept.columns["k.indices"].tolist() == [[1, 2]]
    assert kept.columns["a"].tolist() == [1]


def test_the_value_is_that_at_the_put_though_the_array_is_overwritten():
    values = torch.from_numpy(LOGITS.copy())
    kept = Kept()
    with Drain(kept, outputs={"output": Argmax()}) as drain:
        drain.put(np.arange(12), values)
        values.zero_()
    np.testing.assert_array_equal(kept.columns["output"], LOGITS.argmax(1))


@pytest.mark.parametrize("scheme", ["parquet", "arrow", "npy", "safetensors", "zarr", "webdataset", "delta"])
def test_sinks_hold_what_is_left_and_later_runs_must_leave_the_same(tmp_path, scheme):
    sink = f"{scheme}:{tmp_path / 'out'}"
    smaller = "int16" if scheme == "delta" else "float16"
    outputs: dict[str, Any] = {"logits": TopK(3), "field": Cast(smaller), "mask": Argmax()}
    rows = {"logits": LOGITS, "field": FIELD / 1e5, "mask": LOGITS}
    with Drain(sink, outputs=outputs) as drain:
        drain.put(np.arange(12), rows)
        drain.put(np.arange(3), {name: value[:3] for name, value in rows.items()})  # the same rows again
    assert read_status(sink).rows_committed == 12
    with pytest.raises(SinkConflictError, match=r"outputs.logits was .*TopK\(count=3\).*, is now .*TopK\(count=4\)"):
        Drain(sink, outputs={**outputs, "logits": TopK(4)})
    form, folder = open_sink(sink)
    (shard,) = (path for path in folder.iterdir() if path.name.startswith("part-"))
    stored = form.read_rows(shard, [0, 1])
    assert {name: (column.dtype.name, column.shape[1:]) for name, column in stored.items()} == {
        "logits.values": ("float32", (3,)),
        "logits.indices": ("int32", (3,)),
        "field": (smaller, (3, 5)),
        "mask": ("int32", ()),
    }


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (Crop(slice(1), slice(1)), r"output 'x' .*its rows have 1 axes, the shape of one is \(40,\)"),
        (Crop(slice(0, 41)), "41 lies outside of axis 0 of a row, which has 40 values"),
        (Crop(slice(-41, 3)), "-41 lies outside of axis 0"),
        (Crop(slice(20, -20)), "nothing is left of axis 0"),
        (TopK(41), r"output 'x' cannot be put through TopK\(count=41\): its rows have 40 values"),
        (Argmax("uint8"), r"its rows have 300 values, uint8 ends at 255; use int32"),
        (Cast("bfloat16"), r"output 'x' has the dtype bfloat16: npy: stores"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_drain_goes_on(tmp_path, option, message):
    values = np.zeros((12, 300 if isinstance(option, Argmax) else 40))
    with Drain(f"npy:{tmp_path / 'out'}", outputs={"x": option}) as drain:
        for _ in range(2):
            with pytest.raises(UsageError, match=message):
                drain.put(np.arange(12), {"x": values})


def test_outputs_that_are_not_there_or_clash_or_have_no_axis_are_refused():
    with Drain(Kept(), outputs={"y": TopK(1)}) as drain:
        with pytest.raises(UsageError, match="outputs= names 'y', which is not there: the outputs are x"):
            drain.put([1], {"x": np.ones((1, 2))})
        with pytest.raises(UsageError, match=r"two outputs would be called 'y\.values'"):
            drain.put([1], {"y": np.ones((1, 2)), "y.values": np.ones(1)})
        with pytest.raises(UsageError, match=r"output 'y' cannot be put through .*each of its rows is one number"):
            drain.put([1], {"y": np.ones(1)})


def test_jax_does_not_narrow_a_cast_unsaid():
    narrowed = pytest.raises(UsageError, match="without jax_enable_x64 JAX makes it float32")
    with Drain(Kept(), outputs={"output": Cast("float64")}) as drain, narrowed:
        drain.put([1], jnp.ones((1, 2)))


def test_memory_that_no_framework_holds_is_refused():
    device = SimulatedDevice("eager")
    array = DeviceArray(device, device.allocate(8), (1, 2), "float32", device.record(device.stream("compute")))
    refused = pytest.raises(UsageError, match=r"output 'output' cannot be put through .*no framework holds it")
    with Drain(Kept(), outputs={"output": TopK(1)}) as drain, refused:
        drain.put([1], array)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (lambda: Cast("complex64"), r"Cast\(dtype='complex64'\) names no element type of sinks"),
        (lambda: TopK(0), "keeps nothing"),
        (lambda: Quantize("int4"), "names no type of codes; use int8 or uint8"),
        (Crop, r"Crop\(\) keeps all"),
        (lambda: Crop(slice(0, 9, 2)), "is no slice of integers without a step"),
        (lambda: Crop(slice(*(True, 2))), "is no slice of integers without a step"),
        (lambda: Crop(slice(0, 1.5)), "is no slice of integers without a step"),
        (lambda: Crop(3), "3 in Crop is no slice"),  # type: ignore[arg-type]
        (lambda: Drain("null:", outputs={"x": []}), r"outputs\['x'\] is \[\]"),
        (lambda: Drain("null:", outputs={"x": [TopK(3), Cast("float16")]}), r"goes on after TopK\(count=3\)"),
        (lambda: Drain("null:", outputs={"x": [Quantize(), Argmax()]}), r"goes on after Quantize\(dtype='int8'\)"),
        (lambda: Argmax("float32"), "names no integer type"),
        (lambda: Drain("null:", outputs={"x": "float16"}), r"outputs\['x'\] is 'float16'"),  # type: ignore[dict-item]
    ],
)
def test_options_that_mean_nothing_are_refused_at_once(option, message):
    with pytest.raises(UsageError, match=message):
        option()


# ---------------------------------------------------------------- crop, and several in a row


def test_a_crop_keeps_what_slicing_a_row_keeps(make):
    columns = drained(
        {"f": Crop(slice(1, None), slice(1, -1)), "g": Crop(slice(-2, 3))}, {"f": make(FIELD), "g": make(FIELD)}
    )
    np.testing.assert_array_equal(columns["f"], FIELD[:, 1:, 1:-1])
    np.testing.assert_array_equal(columns["g"], FIELD[:, -2:3])


def test_bounds_of_a_crop_may_be_integers_of_numpy(make):
    margin = np.int64(1)
    columns = drained({"f": Crop(slice(margin, -margin))}, {"f": make(FIELD)})
    np.testing.assert_array_equal(columns["f"], FIELD[:, 1:-1])


def test_a_list_is_done_in_its_order(make):
    chain = [Crop(slice(2), slice(1, 4)), Cast("float16"), TopK(2)]
    columns = drained({"f": chain}, {"f": make(FIELD / 100)})
    part = (FIELD / 100)[:, :2, 1:4].astype(np.float16)
    np.testing.assert_array_equal(columns["f.values"], -np.sort(-part, axis=-1)[..., :2])
    assert columns["f.values"].dtype == np.float16


# ---------------------------------------------------------------- quantize


def read_codes(columns, name="x"):
    """Return what the formula in the docstring makes of codes, in float64."""
    scale = columns[f"{name}.scale"][..., None].astype(np.float64)
    zero = columns[f"{name}.zero"][..., None].astype(np.float64) if f"{name}.zero" in columns else 0.0
    return columns[f"{name}.values"] * scale + zero


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantized_rows_come_back_within_half_a_step(make, dtype):
    columns = drained({"x": Quantize(dtype)}, {"x": make(FIELD - 3e4)})
    assert columns["x.values"].dtype == dtype
    assert (columns["x.values"].shape, columns["x.scale"].shape) == ((12, 3, 5), (12, 3))
    assert columns["x.scale"].dtype == np.float32
    assert list(columns) == ["x.values", "x.scale", *(["x.zero"] if dtype == "uint8" else [])]
    error = np.abs(read_codes(columns) - (FIELD - 3e4))
    assert (error <= columns["x.scale"][..., None] * (0.5 + 2**-14)).all()
    assert error.max() > 0, "nothing was quantized"


ANY_ROWS = hnp.arrays(np.float32, (3, 6), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@settings(max_examples=40, deadline=None)
@given(values=ANY_ROWS)
def test_whatever_the_values_frameworks_agree_and_the_bound_holds(dtype, values):
    found: dict[str, dict[str, Any]] = {}
    for name, maker in MAKERS.items():
        kept = Kept()
        with Drain(kept, outputs={"x": Quantize(dtype)}) as drain:
            drain.put(range(3), {"x": maker(values)})
        found[name] = kept.columns
        back, scale = read_codes(found[name]), found[name]["x.scale"].astype(np.float64)
        is_whole = np.isfinite(scale)
        assert is_whole[np.isfinite(values).all(1) & (np.abs(values).max(1) < 1e38)].all()
        assert not is_whole[~np.isfinite(values).all(1)].any()
        assert np.isnan(back[~is_whole]).all()
        tiny = 255 * 2.0**-126
        assert (np.abs(back - values)[is_whole] <= scale[is_whole, None] * (0.5 + 2**-14) + tiny).all()
    for name in ("torch", "jax"):
        np.testing.assert_allclose(found[name]["x.scale"], found["numpy"]["x.scale"], rtol=2e-7)
        steps = np.abs(found[name]["x.values"].astype(int) - found["numpy"]["x.values"].astype(int))
        assert steps.max() <= 1


def test_zeros_and_constant_rows_come_back_exactly(make):
    values = np.array([[0.0, 0.0, 0.0], [7.5, 7.5, 7.5], [-1.0, 0.0, 1.0]], np.float32)
    kept = Kept()
    with Drain(kept, outputs={"x": Quantize(), "y": Quantize("uint8")}) as drain:
        drain.put([0, 1, 2], {"x": make(values), "y": make(values)})
    assert kept.columns["x.values"][2].tolist() == [-127, 0, 127]
    assert read_codes(kept.columns)[0].tolist() == [0, 0, 0]
    assert read_codes(kept.columns, "y")[:2].tolist() == values[:2].tolist()


def test_a_row_with_nan_is_nan_when_it_comes_back_and_fails_if_nan_should(make, tmp_path):
    values = np.array([[1.0, np.nan], [1.0, np.inf], [1.0, 2.0]], np.float32)
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, outputs={"x": Quantize()}, nan="fail") as drain:
        drain.put([0, 1, 2], {"x": make(values)})
    status = read_status(sink)
    assert (status.rows_committed, status.rows_failed) == (1, 2)
