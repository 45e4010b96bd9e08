"""`Drain(verify=True)` without a GPU: silent over correct puts; faults planted in them are named."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interlock import Drain
from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray
from interlock.check._hazards import Fold
from interlock.devices import SimulatedDevice
from interlock.drain import _intake
from interlock.drain._lane import Lane
from interlock.drain._publish import Publisher
from interlock.drain._staging import Claim
from interlock.errors import CorruptionError, DeviceError
from interlock.lowlevel import observe

SCHEDULES = ["lazy", "eager", "starve:drain", "starve:default", "random:3", "pct:5"]


class Double:
    """A device that does something wrong on the drain's own stream, and leaves all else to the simulated one."""

    def __init__(self) -> None:
        self.inner = SimulatedDevice("lazy")

    def __getattr__(self, name):
        return getattr(self.inner, name)


class LandsLate(Double):
    """Says that the values are on the host before they are."""

    def record(self, stream):
        return Fence.EMPTY if stream.name.endswith("/drain") else self.inner.record(stream)


class CopiesShifted(Double):
    """Takes the first row from one place too far on."""

    def copy(self, target, source, stream):
        if not stream.name.endswith("/drain"):
            self.inner.copy(target, source, stream)
            return
        self.inner.copy(target.slice(0, 16), source.slice(16, 16), stream)
        rest = target.size_bytes - 16
        self.inner.copy(target.slice(16, rest), source.slice(16, rest), stream)


def put_on_device(drain: Drain, device, numbers: range) -> None:
    """Compute and put batches of four rows; each is overwritten in stream order behind its put."""
    stream = device.stream("default")
    memory = device.allocate(64)
    for number in numbers:
        values = number + np.arange(16, dtype=np.float32).reshape(4, 4) / 16

        def fill(values=values):
            memory.view()[:] = values.tobytes()

        device.launch(stream, fill, writes=[memory])
        ids = np.arange(4) + 4 * number
        drain.put(ids, {"y": DeviceArray(device, memory, (4, 4), "float32", device.record(stream))})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_said_of_values_that_are_overwritten_in_stream_order(tmp_path, rows, schedule):
    device = SimulatedDevice(schedule)
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, verify=True, budget_bytes=512) as drain:
        put_on_device(drain, device, range(12))
    assert {row: int(value[0]) for row, value in rows(sink, "y").items()} == {row: row // 4 for row in range(48)}


@pytest.mark.parametrize("borrow", [False, True])
def test_nothing_is_said_of_arrays_of_any_framework(tmp_path, columns, borrow):
    sink = f"npy:{tmp_path / 'out'}"
    numbers = np.arange(24).reshape(12, 2)
    outputs: dict[str, Any] = {
        "numpy": numbers[:, ::-1],
        "foreign": numbers.astype(">f8"),
        "torch": torch.from_numpy(numbers)[:, :1] > 5,
        "negative": torch.complex(torch.ones(12), torch.arange(12.0)).conj().imag,
        "jax": jnp.asarray(numbers, jnp.float32) * 2,
    }
    with Drain(sink, verify=True, budget_bytes=900, borrow=borrow) as drain:
        drain.put(range(12), outputs)
        drain.put(range(12), outputs)
    found = columns(sink)
    outputs["negative"] = -np.arange(12)
    assert all((found[name] == np.asarray(value)).all() for name, value in outputs.items())


def test_nothing_is_said_of_rows_that_are_larger_than_the_budget(tmp_path, columns):
    device = SimulatedDevice("lazy")
    sink = f"npy:{tmp_path / 'out'}"
    memory = device.allocate(4096)
    memory.view()[:] = bytes(range(256)) * 16
    with Drain(sink, verify=True, budget_bytes=1000) as drain:
        drain.put([0, 1], DeviceArray(device, memory, (2, 2048), "uint8", Fence.EMPTY))
    assert columns(sink)["output"].tobytes() == bytes(range(256)) * 16


def test_values_that_land_late_are_named_and_not_committed(tmp_path):
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True)
    put_on_device(drain, LandsLate(), range(1))
    with pytest.raises(CorruptionError, match=r"output 'y' of put 0 \(rows 0 to 3\) .* hold 0xFF: they") as got:
        drain.close()
    assert (got.value.number, got.value.leaf) == (0, "y")
    assert isinstance(got.value, DeviceError)
    assert len(drain.committed) == 0


def test_values_from_the_wrong_place_are_named(tmp_path):
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True)
    put_on_device(drain, CopiesShifted(), range(1))
    with pytest.raises(
        CorruptionError, match=r"output 'y' of put 0 .* when it had landed: 1 of 1 parts differ from what was put"
    ):
        drain.close()


def hold_writer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the writer do nothing before the event is set."""
    go = threading.Event()
    do = Lane._do

    def held(self, job):
        assert go.wait(30)
        do(self, job)

    monkeypatch.setattr(Lane, "_do", held)
    return go


def test_a_slot_that_is_used_again_too_early_is_named(tmp_path, monkeypatch):
    lend = Claim.lend

    def taken_back_at_once(self, fence):
        lend(self, fence)
        self.staging.ring.retire(self.lease)

    monkeypatch.setattr(Claim, "lend", taken_back_at_once)
    monkeypatch.setattr(Claim, "retire", lambda _: None)
    go = hold_writer(monkeypatch)
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True)
    for number in range(2):
        drain.put([number], np.full((1, 4), number))
    go.set()
    with pytest.raises(CorruptionError, match=r"of put 0 .* was wrong when it had landed"):
        drain.close()


def test_a_slot_that_is_overwritten_while_the_writer_reads_it_is_named(tmp_path, monkeypatch):
    write = Publisher.write

    def scribbled(self, ids, columns):
        write(self, ids, columns)
        columns["output"].setflags(write=True)
        columns["output"][:] = 0

    monkeypatch.setattr(Publisher, "write", scribbled)
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True)
    drain.put([0], np.ones((1, 4)))
    with pytest.raises(CorruptionError, match=r"put 0 .* when it was written: 1 of 1 parts .*, and hold zeros"):
        drain.close()
    assert len(drain.committed) == 0


def test_a_broken_promise_not_to_write_to_a_borrowed_array_is_named(tmp_path, monkeypatch):
    go = hold_writer(monkeypatch)
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True, borrow=True)
    values = np.ones((2, 4))
    drain.put([0, 1], {"a": np.zeros(2), "b": values})
    values += 1
    go.set()
    with pytest.raises(CorruptionError, match=r"output 'b' of put 0 .*with borrow=True nothing may write"):
        drain.close()


def test_slots_that_came_back_hold_poison(tmp_path):
    device = SimulatedDevice("lazy")
    with Drain(f"npy:{tmp_path / 'out'}", verify=True) as drain:
        put_on_device(drain, device, range(1))
        drain.flush()
        (staging,) = drain._intake._stagings.values()
        slots = [staging.pool.memory(slot, 1).staging for slot in staging._mirrors]
        assert slots
        for memory in (*slots, *staging._mirrors.values()):
            assert bytes(memory.view()) == b"\xff" * memory.size_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_poison_of_slots_that_came_back_is_in_order_with_everything_else(tmp_path, schedule):
    """The fold that finds hazards sees the poison as a write, and finds none."""
    fold = Fold()
    stop = observe(fold.add)
    with Drain(f"npy:{tmp_path / 'out'}", verify=True, budget_bytes=512) as drain:
        put_on_device(drain, SimulatedDevice(schedule), range(6))
    stop()
    assert fold.findings == []


def test_a_large_row_whose_second_look_failed_leaves_no_room_taken(tmp_path, columns, monkeypatch):
    def fail(*_):
        raise DeviceError("the second look failed")

    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, verify=True, budget_bytes=100, timeout_s=2) as drain:
        with monkeypatch.context() as patch:
            patch.setattr(_intake, "sums_at_put", fail)
            with pytest.raises(DeviceError, match="second look"):
                drain.put([0], np.ones((1, 100)))
        assert drain.statistics().held_bytes == 0
        drain.put([0], np.ones((1, 100)))
    assert columns(sink)["output"].tolist() == [[1.0] * 100]
