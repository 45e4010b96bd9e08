"""JAX on the CPU reads a slot when its computations run, long after the batch was dropped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from interlock import Feed


def test_a_slot_is_not_written_while_a_queued_computation_reads_it():
    data = np.repeat(np.arange(24, dtype=np.float32), 256 * 256).reshape(24, 256, 256)
    feed = Feed(data, batch_size=1, to="jax", workers=2, depth=4)

    @jax.jit
    def step(carry, batch):
        for _ in range(4):  # long enough that the loop below is far ahead of it
            carry = jnp.tanh(carry @ carry)
        after = jnp.sum(carry) * 0
        return carry, jnp.min(batch) + after, jnp.max(batch) + after

    carry = jnp.eye(256)
    probes = []
    for batch in feed:
        carry, low, high = step(carry, batch)
        probes.append((low, high))
        del batch
    assert [(float(low), float(high)) for low, high in probes] == [(n, n) for n in range(24)]


def test_batches_alias_the_slot_unless_jax_has_no_such_dtype():
    feed = Feed({"f": np.zeros((8, 5), np.float32), "d": np.zeros((8, 5))}, batch_size=4, to="jax")
    for batch in feed:
        assert batch["f"].unsafe_buffer_pointer() % 64 == 0
        assert batch["d"].dtype == jnp.float32
        del batch


def test_a_batch_may_be_donated():
    feed = Feed(np.ones((12, 4), np.float32), batch_size=4, to="jax")
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    assert [float(double(batch).sum()) for batch in feed] == [32.0] * 3
