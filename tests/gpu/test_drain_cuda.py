"""Draining memory that no framework holds, as those give who drive a CUDA device themselves.

Each test runs on a driver made of Python too; those of tests/drain run on simulated devices.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from interlock import Drain
from interlock._core._protocols import DeviceArray, Piece, Pieces


def on_device(device: Any, values: np.ndarray, stream: Any) -> Any:
    """Return memory of the device that holds `values` once the stream is there."""
    host = device.allocate_host(values.nbytes)
    host.view()[:] = np.ascontiguousarray(values).tobytes()
    memory = device.allocate(values.nbytes)
    device.copy(memory, host, stream)
    return memory


@pytest.mark.parametrize("stable", [False, True])
def test_memory_that_no_framework_holds_is_snapshot_in_the_order_of_its_stream(cuda_or_fake, out, stable, stored):
    cuda = cuda_or_fake
    stream: Any = cuda.stream("compute")
    memory = cuda.allocate(16)
    hosts = [cuda.allocate_host(16) for _ in range(8)]
    for number, host in enumerate(hosts):
        host.view()[:] = np.full(4, number, np.float32).tobytes()
    with Drain(f"npy:{out}", borrow=False) as drain:
        for batch in range(4):
            cuda.copy(memory, hosts[batch], stream)
            array = DeviceArray(cuda, memory, (4,), "float32", cuda.record(stream), stable=stable)
            ticket = drain.put(np.arange(4) + 4 * batch, array)
            if stable:
                ticket.wait("landed", timeout_s=60)
            cuda.copy(memory, hosts[batch + 4], stream)
        drain.flush()
        assert drain.statistics().host_syncs == 0
    assert stored().tolist() == [row // 4 for row in range(16)]


@pytest.mark.parametrize("budget_bytes", [1 << 20, 200])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_on_two_devices_land_where_they_belong(two_cuda_or_fake, out, axis, budget_bytes, stored):
    """Also in slabs: with the small budget a row is larger than it."""
    values = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
    with Drain(f"npy:{out}", budget_bytes=budget_bytes) as drain:
        for batch in range(3):
            pieces = []
            for number, device in enumerate(two_cuda_or_fake):
                part = np.split(values + batch, 2, axis)[number]
                stream = device.stream("compute")
                memory = on_device(device, part, stream)
                array = DeviceArray(device, memory, part.shape, "float32", device.record(stream), stable=True)
                pieces.append(Piece(array, (2 * number, 0) if axis == 0 else (0, 32 * number)))
            drain.put(np.arange(4) + 4 * batch, Pieces(values.shape, "float32", tuple(pieces)))
    assert np.array_equal(stored(), np.concatenate([values, values + 1, values + 2]))


def test_what_the_drain_reads_is_let_go_once_it_has_landed(cuda_or_fake, out, stored):
    """Not only when the rows are written: device memory is dear."""

    class Owner:
        """Holds the memory, as a framework's array does."""

    device = cuda_or_fake
    stream = device.stream("compute")
    memory = on_device(device, np.ones(4, np.float32), stream)
    gone: list[bool] = []
    with Drain(f"npy:{out}") as drain:
        owner = Owner()
        weakref.finalize(owner, gone.append, True)  # noqa: FBT003 - a mark
        wrapped = device.wrap(memory.address, 16, owner)
        del owner
        ticket = drain.put(range(4), DeviceArray(device, wrapped, (4,), "float32", device.record(stream), stable=True))
        del wrapped
        ticket.wait("written", timeout_s=60)
        device.collect()
        assert gone == [True]
    assert stored().tolist() == [1, 1, 1, 1]
