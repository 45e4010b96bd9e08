"""Rows larger than the budget travel alone, in slabs, and hold what they held at `put`."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray, Piece, Pieces
from interlock.devices import SimulatedDevice
from interlock.drain import Drain, _publish
from interlock.errors import DeviceError

SCHEDULES = ["lazy", "eager", "starve:drain", "starve:compute", *(f"random:{seed}" for seed in range(4))]
BUDGET = 1_000
VALUES = np.arange(3 * 2_000, dtype=np.float32).reshape(3, 2_000)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_a_host_row_larger_than_the_budget_is_written_as_it_was(sink, columns, kind):
    values = VALUES.copy()
    outputs = values
    if kind == "torch":
        outputs = pytest.importorskip("torch").from_numpy(values)
    elif kind == "jax":
        outputs = pytest.importorskip("jax.numpy").array(values)
    with Drain(sink, budget_bytes=BUDGET) as drain:
        drain.put(range(3), outputs)
        if kind != "jax":
            values.fill(np.nan)
        drain.flush()
        assert drain.statistics().held_bytes == 0
    assert np.array_equal(columns(sink)["output"], VALUES)


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_device_row_larger_than_the_budget_travels_in_slabs(tmp_path, columns, schedule, borrow):
    """The program overwrites the memory right after `put`, in its own order."""
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    stream = device.stream("compute")
    memory = device.allocate(VALUES.nbytes)

    def write(values):
        def run():
            memory.view()[:] = values.tobytes()

        device.launch(stream, run, writes=[memory], name="produce")

    with Drain(sink, budget_bytes=BUDGET, borrow=borrow) as drain:
        for batch in range(3):
            array = DeviceArray(device, memory, VALUES.shape, "float32", device.record(stream))
            write(VALUES + batch)  # before `put`, so this is the value
            drain.put(np.arange(3) + 3 * batch, {"x": array, "small": np.arange(3)})
            write(np.full_like(VALUES, np.nan))
        (staging,) = (one for one in drain._intake._stagings.values() if one.device is device)
        assert staging.pool.allocated_bytes <= BUDGET
    expected = np.concatenate([VALUES, VALUES + 1, VALUES + 2])
    assert np.array_equal(columns(sink)["x"], expected)


def test_a_row_in_pieces_larger_than_the_budget_is_put_together(tmp_path, columns):
    sink = f"npy:{tmp_path / 'out'}"
    devices = [SimulatedDevice("random:1", index=0), SimulatedDevice("lazy", index=1)]
    pieces = []
    for device, at in zip(devices, (0, 1_000), strict=True):
        part = np.ascontiguousarray(VALUES[:, at : at + 1_000])
        memory = device.allocate(part.nbytes)
        memory.view()[:] = part.tobytes()
        array = DeviceArray(device, memory, part.shape, "float32", Fence.EMPTY, stable=True)
        pieces.append(Piece(array, (0, at)))
    with Drain(sink, budget_bytes=BUDGET) as drain:
        drain.put(range(3), Pieces(VALUES.shape, "float32", tuple(pieces)))
    assert np.array_equal(columns(sink)["output"], VALUES)


def test_a_large_row_waits_until_the_one_before_is_written(tmp_path, monkeypatch, columns):
    """So the host holds one row and the budget."""
    gate = threading.Event()
    held = []

    def stuck(name, action):
        if name == "write":
            gate.wait(20)
        action()

    monkeypatch.setattr(_publish, "run_step", stuck)
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, budget_bytes=BUDGET) as drain:
        drain.put([0], VALUES[:1])
        assert drain.statistics().held_bytes == VALUES[:1].nbytes
        hear, wait = drain._intake._hear, drain._intake._hear_until

        def watch(message):
            hear(message)
            held.append(drain.statistics().held_bytes)

        def wait_at_the_gate(has_room, bound_s):
            assert not has_room()
            gate.set()
            return wait(has_room, bound_s)

        monkeypatch.setattr(drain._intake, "_hear", watch)
        monkeypatch.setattr(drain._intake, "_hear_until", wait_at_the_gate)
        drain.put([1], VALUES[1:2])
        assert gate.is_set()
        assert held[0] == 0
    assert np.array_equal(columns(sink)["output"], VALUES[:2])


def test_a_large_row_that_its_device_lost_is_an_error_and_the_drain_goes_on(tmp_path, rows):
    device = SimulatedDevice("lazy")
    stream = device.stream("compute")
    memory = device.allocate(8_000)

    def broken():
        raise ArithmeticError("illegal address")

    device.launch(stream, broken, writes=[memory])
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, budget_bytes=BUDGET) as drain:
        with pytest.raises(DeviceError, match="illegal address"):
            drain.put([1], DeviceArray(device, memory, (1, 2_000), "float32", device.record(stream)))
        drain.put([2], np.zeros((1, 2_000), np.float32))
    assert list(rows(sink)) == [2]
