"""Draining CuPy arrays, on the first CUDA device.

The twins of these tests are those of tests/drain/test_drain_values.py, on the simulated device.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from interlock import Drain
from interlock.testing import gate

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("cuda")
WIDTH = 1000


def test_an_array_may_be_overwritten_right_after_put(out, stored):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        static = cupy.zeros((4, WIDTH), np.float32)
    with Drain(f"npy:{out}") as drain:
        for batch in range(4):
            with stream, gate(stream) if batch else nullcontext():
                static.fill(batch)
                drain.put(np.arange(4) + 4 * batch, static)
                static.fill(np.nan)
            drain.flush()
        assert drain.statistics().host_syncs == 0
    assert np.array_equal(stored(), np.repeat(np.arange(16.0)[:, None] // 4, WIDTH, axis=1))


@pytest.mark.parametrize("borrow", [False, True])
def test_an_array_that_is_dropped_right_after_put_keeps_its_value(out, borrow, stored):
    """CuPy gives its memory to the next array at once."""
    with Drain(f"npy:{out}", borrow=borrow) as drain:
        for batch in range(8):
            drain.put([batch], cupy.full((1, 1 << 20), batch, np.float32))
            cupy.full((1, 1 << 20), np.nan, np.float32)
    rows = stored()
    assert (rows.min(axis=1) == np.arange(8)).all()
    assert (rows.max(axis=1) == np.arange(8)).all()


def test_views_are_written_as_they_look(out, stored):
    base = cupy.arange(24, dtype=np.float32).reshape(4, 6)
    with Drain(f"npy:{out}") as drain:
        drain.put(
            range(4),
            {
                "strided": base[:, ::2],
                "turned": base.reshape(6, 4).T,
                "expanded": cupy.broadcast_to(base[:, :1], (4, 3)),
                "fortran": base.copy(order="F"),
                "flag": base > 5,
            },
        )
        base.fill(np.nan)
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(stored("strided"), values[:, ::2])
    assert np.array_equal(stored("turned"), values.reshape(6, 4).T)
    assert np.array_equal(stored("expanded"), np.repeat(values[:, :1], 3, axis=1))
    assert np.array_equal(stored("fortran"), values)
    assert np.array_equal(stored("flag"), values > 5)


def test_a_row_larger_than_the_budget_travels_in_slabs(out, stored):
    static = cupy.zeros((2, WIDTH), np.float32)
    with Drain(f"npy:{out}", budget_bytes=2000) as drain:
        for batch in range(3):
            static[:] = cupy.arange(2, dtype=np.float32)[:, None] + 2 * batch
            drain.put([2 * batch, 2 * batch + 1], static)
            static.fill(np.nan)
    assert np.array_equal(stored(), np.repeat(np.arange(6.0)[:, None], WIDTH, axis=1))


def test_arrays_of_several_devices_belong_together(two_devices, out, stored):
    assert len(two_devices) == 2
    statics = {}
    for index in range(2):
        with cupy.cuda.Device(index):
            statics[f"on_{index}"] = cupy.zeros((4, WIDTH), np.float32)
    with Drain(f"npy:{out}") as drain:
        for batch in range(4):
            for index, static in enumerate(statics.values()):
                with cupy.cuda.Device(index):
                    static.fill(batch)
            drain.put(np.arange(4) + 4 * batch, statics)
            for index, static in enumerate(statics.values()):
                with cupy.cuda.Device(index):
                    static.fill(np.nan)
    for name in statics:
        assert np.array_equal(stored(name), np.repeat(np.arange(16.0)[:, None] // 4, WIDTH, axis=1))
