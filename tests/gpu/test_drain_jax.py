"""Draining JAX arrays on GPUs.

The twins of these tests, on JAX's CPU devices and on the simulated device, are in tests/drain: test_drain_values.py,
test_drain_pieces.py and test_drain_large_rows.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock import Drain
from interlock.errors import UsageError
from interlock.testing import gate

jax = pytest.importorskip("jax")
jnp = jax.numpy
WIDTH = 1000


@pytest.fixture
def gpu(cuda) -> Any:
    """The first GPU, as Interlock and as JAX knows it."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs a JAX with CUDA")
    return cuda


def test_an_array_may_be_donated_right_after_put(gpu, out, stored):
    """The drain's own stream is held, so no byte has left when the next step writes over the donated buffer."""
    step = jax.jit(lambda state: state + 1, donate_argnums=0)
    state = step(jnp.zeros((4, WIDTH))) - 1  # compiled before a stream is held
    with Drain(f"npy:{out}") as drain:
        drain.put(range(-4, 0), state)  # what is loaded and made at the first put may wait for the stream
        drain.flush()
        for batch in range(4):
            with gate(gpu.stream("drain"), device=gpu):
                ticket = drain.put(np.arange(4) + 4 * batch, state)
                for _ in range(3):
                    state = step(state)
                assert not ticket.landed
            drain.flush()  # one slot is enough: another could not be made while a stream is held
        assert drain.statistics().host_syncs == 0
    assert np.array_equal(stored()[4:], np.repeat(3 * (np.arange(16.0)[:, None] // 4), WIDTH, axis=1))


@pytest.mark.usefixtures("gpu")
def test_a_value_that_is_not_computed_yet_is_waited_for_by_the_copy_alone(out, stored):
    @jax.jit
    def slow(seed):
        matrix = jnp.eye(2048) * seed
        for _ in range(60):
            matrix = matrix @ jnp.eye(2048)
        return matrix[:4, :4]

    slow(0.0).block_until_ready()
    with Drain(f"npy:{out}") as drain:
        for batch in range(4):
            drain.put(np.arange(4) + 4 * batch, slow(float(batch)))
        drain.flush()
        assert drain.statistics().host_syncs == 0
    assert np.allclose(stored(), np.concatenate([np.eye(4) * batch for batch in range(4)]))


def test_borrowed_arrays_are_held_until_they_have_landed(gpu, out, stored):
    with Drain(f"npy:{out}", borrow=True) as drain:
        drain.put([-1], jnp.full((1, 1 << 20), -1.0))
        drain.flush()
        for batch in range(4):
            with gate(gpu.stream("drain"), device=gpu):
                drain.put([batch], jnp.full((1, 1 << 20), float(batch)))  # dropped at once
                jnp.full((1, 1 << 20), jnp.nan)
            drain.flush()
    rows = stored()[1:]
    assert (rows.min(axis=1) == np.arange(4)).all()
    assert (rows.max(axis=1) == np.arange(4)).all()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "float32"])
def test_dtypes_keep_their_bits(out, dtype, stored):
    values = (np.arange(24) % 5).reshape(4, 6).astype(dtype)
    with Drain(f"npy:{out}") as drain:
        drain.put(range(4), {"x": jnp.asarray(values), "turned": jnp.asarray(values).reshape(6, 4).T})
    assert stored("x").dtype == dtype
    assert np.array_equal(stored("x"), values)
    assert np.array_equal(stored("turned"), values.reshape(6, 4).T)


@pytest.mark.usefixtures("gpu")
def test_what_has_no_value_or_no_place_in_a_sink_is_refused_by_name(out):
    gone = jnp.ones((1, 2))
    gone.delete()
    with Drain(f"npy:{out}") as drain:
        with pytest.raises(UsageError, match=r"output 'x'.*was deleted.*before it is donated"):
            drain.put([0], {"x": gone})
        with pytest.raises(UsageError, match=r"output 'x'.*bfloat16"):
            drain.put([0], {"x": jnp.ones((1, 2), jnp.bfloat16)})
        with pytest.raises(UsageError, match=r"output 'x'.*key_data"):
            drain.put([0], {"x": jax.random.key(0)[None]})


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("borrow", [False, True])
def test_a_row_larger_than_the_budget_travels_in_slabs(out, borrow, stored):
    with Drain(f"npy:{out}", budget_bytes=2000, borrow=borrow) as drain:
        for batch in range(3):
            drain.put([2 * batch, 2 * batch + 1], jnp.arange(2.0)[:, None] + 2 * batch + jnp.zeros((2, WIDTH)))
    assert np.array_equal(stored(), np.repeat(np.arange(6.0)[:, None], WIDTH, axis=1))


@pytest.mark.usefixtures("gpu")
def test_arrays_in_host_memory_and_on_the_cpu_are_drained_too(out, stored):
    cpu = jax.devices("cpu")[0]
    pinned = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    values = jnp.arange(8.0).reshape(2, 4)
    with Drain(f"npy:{out}") as drain:
        drain.put([0, 1], {"x": jax.device_put(values, cpu), "y": jax.device_put(values, pinned), "z": values})
    assert all(np.array_equal(stored(name), values) for name in "xyz")


def test_sharded_arrays_are_written_whole_and_once(two_devices, out, stored):
    assert len(two_devices) == 2
    axes, spec = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",)), jax.sharding.PartitionSpec
    values = np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)
    with Drain(f"npy:{out}") as drain:
        for batch, partition in enumerate([spec(), spec("a"), spec(None, "a"), spec("a"), spec(None, "a")]):
            array = jax.device_put(values + batch, jax.sharding.NamedSharding(axes, partition))
            drain.put(np.arange(8) + 8 * batch, array)
            array.delete()
        drain.flush()
        assert drain.statistics().host_syncs == 0
    assert np.array_equal(stored(), np.concatenate([values + batch for batch in range(5)]))


def test_a_sharded_row_larger_than_the_budget_travels_in_slabs(two_devices, out, stored):
    assert len(two_devices) == 2
    axes, spec = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",)), jax.sharding.PartitionSpec
    values = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    with Drain(f"npy:{out}", budget_bytes=2000) as drain:
        for batch, partition in enumerate([spec("a"), spec(None, "a")]):
            drain.put(np.arange(4) + 4 * batch, jax.device_put(values, jax.sharding.NamedSharding(axes, partition)))
    assert np.array_equal(stored(), np.concatenate([values, values]))
