"""Sharded feeds on four CPU devices. `test_feed_sharded.py` runs this in a process that has so many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from interlock import Feed
from interlock.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
SPECS = {
    "rows": ("data",),
    "rows by both axes": (("data", "model"),),
    "rows and features": ("data", "model"),
    "features alone": (None, "model"),
    "the last axis": ("model", None, "data"),
    "copies": (),
}


def _sharding(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*spec))


@pytest.mark.parametrize("name", SPECS)
def test_each_leaf_is_one_global_array_with_the_values_of_the_source(name: str):
    data: dict[str, npt.NDArray[Any]] = {
        "x": np.arange(64 * 6 * 4, dtype=np.float32).reshape(64, 6, 4),
        "y": np.arange(64),
        "b": (np.arange(64 * 2 * 2) % 3 == 0).reshape(64, 2, 2),
        "h": np.arange(64 * 2 * 6).reshape(64, 2, 6).astype(ml_dtypes.bfloat16),
    }
    feed = Feed(data, batch_size=16, to=_sharding(*SPECS[name]), workers=2)
    kept = [*feed, *feed]
    for number, batch in enumerate(kept):
        rows = slice(number % 4 * 16, number % 4 * 16 + 16)
        for leaf, values in data.items():
            expected = values[rows].astype(np.int32) if leaf == "y" else values[rows]
            array = batch[leaf]
            assert np.asarray(array).tobytes() == expected.tobytes(), (number, leaf)
            assert array.sharding.is_equivalent_to(_sharding(*SPECS[name][: values.ndim]), values.ndim)
            for shard in array.addressable_shards:
                assert np.asarray(shard.data).tobytes() == expected[shard.index].tobytes()
    assert feed.statistics().host_syncs == 0


def test_shards_of_the_first_device_are_the_slot_itself():
    feed = Feed(np.zeros((8, 1024), np.float32), batch_size=8, to=_sharding("data"), workers=0)
    batches = iter(feed)
    batch = next(batches)
    first = next(shard for shard in batch.addressable_shards if shard.device == jax.devices()[0])
    slots = batches.pipeline._staging.pool._slots.values()
    assert first.data.unsafe_buffer_pointer() in {slot.staging.address for slot in slots}


def test_a_slot_is_not_written_while_a_queued_computation_reads_its_shards():
    data = np.repeat(np.arange(96, dtype=np.float32), 1 << 12).reshape(96, 1 << 12)
    feed = Feed(data, batch_size=4, to=_sharding("data"), workers=2, depth=4, budget_bytes=6 << 16)

    @jax.jit
    def step(carry: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        for _ in range(3):
            carry = jnp.tanh(carry @ carry)
        after = jnp.sum(carry) * 0
        return carry, jnp.min(batch, axis=1) + after, jnp.max(batch, axis=1) + after

    carry = jax.device_put(jnp.eye(192), _sharding())
    probes = []
    for batch in feed:
        carry, low, high = step(carry, batch)
        probes.append((low, high))
        del batch
    for number, (low, high) in enumerate(probes):
        expected = list(range(number * 4, number * 4 + 4))
        assert (low.tolist(), high.tolist()) == (expected, expected)


def test_a_step_on_the_mesh_takes_the_batch_as_it_is():
    """Under an ambient mesh and a guard against transfers that nobody asked for."""
    data: dict[str, Any] = {"x": np.arange(96, dtype=np.float32).reshape(16, 6), "y": np.arange(16)}
    weights = jax.device_put(jnp.ones((6,)), _sharding("model"))
    step = jax.jit(lambda weights, batch: (batch["x"] @ weights).sum() + batch["y"].sum())
    with jax.set_mesh(MESH), jax.transfer_guard("disallow"):
        sums = [step(weights, batch) for batch in Feed(data, batch_size=8, to=_sharding("data"))]
    assert [float(one) for one in sums] == [data["x"][:8].sum() + 28, data["x"][8:].sum() + 92]


def test_a_sharding_of_another_kind_goes_as_it_is():
    device = jax.devices()[2]
    batch = next(iter(Feed(np.arange(8, dtype=np.float32), batch_size=4, to=SingleDeviceSharding(device))))
    assert batch.devices() == {device}
    assert batch.tolist() == [0, 1, 2, 3]


def test_a_batch_that_does_not_divide_is_refused_by_name_size_and_axis():
    feed = Feed({"x": np.zeros((10, 3), np.float32)}, batch_size=4, to=_sharding(("data", "model")))
    batches = iter(feed)
    assert next(batches)["x"].shape == (4, 3)
    assert next(batches)["x"].shape == (4, 3)
    with pytest.raises(UsageError) as caught:
        next(batches)
    assert str(caught.value) == (
        "leaf 'x' has 2 rows: the mesh splits them by 'data' and 'model' in 4 equal parts; "
        "use drop_last=True or a batch_size that is a multiple of 4"
    )
    kept = Feed({"x": np.zeros((10, 3), np.float32)}, batch_size=4, to=_sharding(("data", "model")), drop_last=True)
    assert len(list(kept)) == 2


def test_features_that_do_not_divide_are_refused_too():
    with pytest.raises(UsageError, match="the array has 3 elements on axis 1") as caught:
        next(iter(Feed(np.zeros((8, 3), np.float32), batch_size=4, to=_sharding("data", "model"))))
    assert caught.value.hint == "pad the samples"


def test_memory_of_another_kind_is_refused():
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()} - {None}
    other = sorted(kinds - {jax.devices()[0].default_memory().kind})
    if not other:
        pytest.skip("the CPU has one kind of memory")
    with pytest.raises(UsageError, match="memory of kind"):
        Feed(np.zeros((8, 2)), batch_size=4, to=NamedSharding(MESH, PartitionSpec("data"), memory_kind=other[0]))


def test_devices_of_other_processes_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", property(lambda _: False))
    with pytest.raises(UsageError, match="only the devices of its own process") as caught:
        Feed(np.zeros((8, 2)), batch_size=4, to=_sharding("data"))
    assert "make_array_from_process_local_data" in caught.value.hint


def test_the_device_is_the_shardings_to_say():
    with pytest.raises(UsageError, match="devices of its own"):
        Feed(np.zeros((8, 2)), batch_size=4, to=_sharding("data"), device="host")
