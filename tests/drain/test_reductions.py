"""`outputs=`: what leaves the device is less, computed there, the same whichever framework holds the array."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from interlock.devices import SimulatedDevice
from interlock.drain import Argmax, Cast, Drain, TopK, open_sink, read_status
from interlock.errors import UsageError
from interlock.lowlevel import DeviceArray

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.permuted(np.arange(12 * 40, dtype=np.float32).reshape(12, 40) - 200, axis=1)
FIELD = RANDOM.random((12, 3, 5), np.float32) * 1e5  # beyond float16 in places


def to_torch(values):
    return torch.from_numpy(values.copy()).requires_grad_()


MAKERS = {"numpy": np.array, "torch": to_torch, "jax": jnp.array}


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
    with Drain(sink, outputs={**outputs, "logits": TopK(4)}) as drain, pytest.raises(UsageError, match=r"\(3,\)"):
        drain.put([99], {name: value[:1] for name, value in rows.items()})
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
        (lambda: Argmax("float32"), "names no integer type"),
        (lambda: Drain("null:", outputs={"x": "float16"}), r"outputs\['x'\] is 'float16'"),  # type: ignore[dict-item]
    ],
)
def test_options_that_mean_nothing_are_refused_at_once(option, message):
    with pytest.raises(UsageError, match=message):
        option()
