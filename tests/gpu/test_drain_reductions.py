"""Outputs made smaller on their device before they are drained; torch also in simulations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from interlock import Drain
from interlock.drain import Argmax, Cast, Crop, Quantize, TopK
from interlock.testing import gate

OUTPUTS: dict[str, Any] = {
    "k": TopK(3),
    "m": Argmax("uint8"),
    "h": Cast("float16"),
    "q": [Crop(slice(5, -5)), Quantize()],
    "u": Quantize("uint8"),
}
ROWS = np.random.default_rng(0).permuted(np.arange(4 * 100, dtype=np.float32).reshape(4, 100), axis=1)


def check(stored, batches):
    """What was stored is what NumPy makes of `ROWS`, once a batch."""
    order = np.argsort(-ROWS, axis=1)[:, :3]
    np.testing.assert_array_equal(stored("k.indices"), np.tile(order, (batches, 1)))
    np.testing.assert_array_equal(stored("k.values"), np.tile(np.take_along_axis(ROWS, order, 1), (batches, 1)))
    np.testing.assert_array_equal(stored("m"), np.tile(order[:, 0], batches))
    np.testing.assert_array_equal(stored("h"), np.tile(ROWS.astype(np.float16), (batches, 1)))
    part = np.tile(ROWS[:, 5:-5], (batches, 1))
    scale = stored("q.scale")[:, None]
    assert (np.abs(stored("q.values") * scale - part) <= scale * 0.51).all()
    scale = stored("u.scale")[:, None]
    back = stored("u.values") * scale + stored("u.zero")[:, None]
    assert (np.abs(back - np.tile(ROWS, (batches, 1))) <= scale * 0.51).all()


@pytest.mark.usefixtures("world")
def test_a_tensor_is_reduced_as_it_is_at_the_put_and_nothing_waits(out, stored):
    """Under a closed gate: neither the value nor what becomes of it exists when `put` returns."""
    source = torch.from_numpy(ROWS).to("cuda")
    static = torch.zeros(4, 100, device="cuda")
    stream = torch.cuda.current_stream()
    with Drain(f"npy:{out}", outputs=OUTPUTS) as drain:
        for batch in range(3):
            with gate(stream) if batch else nullcontext():  # not the first: what is loaded then may wait for the stream
                static.copy_(source)
                ticket = drain.put(np.arange(4) + 4 * batch, dict.fromkeys(OUTPUTS, static))
                static.fill_(float("nan"))
                assert not batch or not ticket.landed
            drain.flush()
        assert drain.statistics().host_syncs == 0
    check(stored, 3)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_jax_and_cupy_reduce_on_their_device(out, stored, name):
    array = pytest.importorskip("jax.numpy" if name == "jax" else "cupy").asarray(ROWS)
    with Drain(f"npy:{out}", outputs=OUTPUTS) as drain:
        drain.put(np.arange(4), dict.fromkeys(OUTPUTS, array))
    check(stored, 1)
