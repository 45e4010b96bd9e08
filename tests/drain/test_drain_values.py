"""What is written is what the arrays held at `put`."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray
from interlock.devices import HostDevice, SimulatedDevice
from interlock.drain import Drain, _intake, _publish
from interlock.drain._staging import Staging
from interlock.errors import BoundError, DeviceError, UsageError
from interlock.lowlevel import observe

SCHEDULES = ["lazy", "eager", "starve:drain", "starve:compute", *(f"random:{seed}" for seed in range(6))]


def fill(memory, values: np.ndarray) -> None:
    memory.view()[:] = values.tobytes()


def produce(device, stream, memory, values: np.ndarray) -> None:
    device.launch(stream, lambda: fill(memory, values), writes=[memory], name="produce")


def test_a_numpy_array_may_be_overwritten_after_put(sink, rows):
    buffer = np.empty((4, 2))
    with Drain(sink) as drain:
        for batch in range(5):
            ids = np.arange(4) + 4 * batch
            buffer[:] = ids[:, None]
            drain.put(ids, buffer)
            buffer.fill(np.nan)
            ids.fill(-1)
    assert rows(sink) == {one: [one, one] for one in range(20)}


def test_a_torch_tensor_may_be_changed_in_place_after_put(sink, rows):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1, bias=False)
    with Drain(sink) as drain:
        outputs = model(torch.ones(3, 1)) * 0 + torch.arange(3.0)[:, None]
        drain.put(torch.arange(3), outputs)
        outputs.detach().fill_(float("nan"))
    assert rows(sink) == {0: [0.0], 1: [1.0], 2: [2.0]}


def test_a_jax_array_may_be_donated_after_put(sink, rows):
    jax = pytest.importorskip("jax")
    step = jax.jit(lambda x: x * 0 - 7, donate_argnums=0)
    with Drain(sink) as drain:
        state = jax.numpy.arange(8.0).reshape(4, 2)
        for batch in range(4):
            drain.put(np.arange(4) + 4 * batch, state + batch if batch else state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some backends cannot donate
                step(state).block_until_ready()
            if not state.is_deleted():
                state.delete()
            state = jax.numpy.arange(8.0).reshape(4, 2)
    expected = {4 * batch + row: [2.0 * row + batch, 2.0 * row + 1 + batch] for batch in range(4) for row in range(4)}
    assert rows(sink) == expected


def test_a_deleted_jax_array_is_refused_by_name(sink):
    jax = pytest.importorskip("jax")
    gone = jax.numpy.ones(2)
    gone.delete()
    with Drain(sink) as drain, pytest.raises(UsageError, match=r"output 'x'.*deleted.*before it is donated"):
        drain.put([1, 2], {"x": gone})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_device_memory_may_be_overwritten_in_stream_order_after_put(tmp_path, rows, schedule):
    """The static output of a graph replay: the same memory every step, overwritten by the next."""
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    stream = device.stream("compute")
    memory = device.allocate(4 * 3 * 4)
    syncs = 0
    with Drain(sink, shard_bytes=200, budget_bytes=1000) as drain:
        for batch in range(12):
            values = np.full((4, 3), batch, np.float32)
            produce(device, stream, memory, values)
            drain.put(np.arange(4) + 4 * batch, DeviceArray(device, memory, (4, 3), "float32", device.record(stream)))
            produce(device, stream, memory, np.full((4, 3), np.nan, np.float32))
        syncs = drain.statistics().host_syncs
    assert rows(sink) == {one: [one // 4] * 3 for one in range(48)}
    assert syncs == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_that_no_stream_orders_is_taken_before_put_returns(tmp_path, rows, schedule):
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    other = device.stream("other")
    memory = device.allocate(16)
    with Drain(sink) as drain:
        for batch in range(4):
            fill(memory, np.full(4, batch, np.float32))
            drain.put(np.arange(4) + 4 * batch, DeviceArray(device, memory, (4,), "float32", Fence.EMPTY))
            produce(device, other, memory, np.full(4, np.nan, np.float32))
            device.record(other).poll(waiting=True)
    assert rows(sink) == {one: float(one // 4) for one in range(16)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_value_ready_on_two_streams_is_ordered_for_both(tmp_path, rows, schedule):
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    first, second = device.stream("first"), device.stream("second")
    memory = device.allocate(16)
    with Drain(sink) as drain:
        for batch in range(6):
            values = np.full(4, batch, np.float32)
            device.wait(first, device.record(second))
            produce(device, first, memory, values)
            ready = device.record(first).join(device.record(second))
            drain.put(np.arange(4) + 4 * batch, DeviceArray(device, memory, (4,), "float32", ready))
            produce(device, second, memory, np.full(4, np.nan, np.float32))
    assert rows(sink) == {one: float(one // 4) for one in range(24)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_borrowed_device_memory_may_be_overwritten_when_it_has_landed(tmp_path, rows, schedule):
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    stream = device.stream("compute")
    memory = device.allocate(16)
    with Drain(sink, borrow=True) as drain:
        for batch in range(4):
            produce(device, stream, memory, np.full(4, batch, np.float32))
            ticket = drain.put(
                np.arange(4) + 4 * batch, DeviceArray(device, memory, (4,), "float32", device.record(stream))
            )
            ticket.wait("landed")
            assert ticket.landed
            produce(device, stream, memory, np.full(4, np.nan, np.float32))
    assert rows(sink) == {one: float(one // 4) for one in range(16)}


def test_host_and_device_leaves_of_one_put_belong_together(tmp_path, columns):
    sink = f"npy:{tmp_path / 'out'}"
    devices: list[Any] = [SimulatedDevice("random:1", index=0), SimulatedDevice("lazy", index=1), HostDevice()]
    with Drain(sink, budget_bytes=2_000) as drain:
        for batch in range(20):
            ids = np.arange(3) + 3 * batch
            outputs: dict[str, Any] = {"host": ids * 1.0}
            for device in devices:
                memory = device.allocate(24)
                fill(memory, ids * 1.0)
                outputs[device.name.replace(":", "_")] = DeviceArray(device, memory, (3,), "float64", Fence.EMPTY)
            drain.put(ids, outputs)
    everything = columns(sink)
    assert len(everything.pop("id")) == 60
    assert set(everything) == {"host", "simulated_0", "simulated_1"} | {"host"}
    assert all((column == np.arange(60)).all() for column in everything.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_value_that_the_device_lost_is_an_error_with_its_cause_and_no_row(tmp_path, rows, schedule):
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice(schedule)
    stream = device.stream("compute")
    memory = device.allocate(16)

    def broken():
        raise ArithmeticError("illegal address")

    drain = Drain(sink)
    drain.put([1], np.ones(1, np.float32))
    drain.flush()
    device.launch(stream, broken, writes=[memory])
    ticket = drain.put(range(2, 6), DeviceArray(device, memory, (4,), "float32", device.record(stream)))
    with pytest.raises(DeviceError, match=r"the copy of 4 rows \(2 to 5\) failed: ArithmeticError: illegal address"):
        drain.close()
    with pytest.raises(DeviceError, match="illegal address"):
        ticket.wait()
    assert not ticket.landed
    assert rows(sink) == {1: 1.0}


def test_nested_outputs_get_dotted_names(sink, columns):
    with Drain(sink) as drain:
        drain.put([7, 8], {"a": (np.array([1, 2]), {"b": np.array([[1.5], [2.5]])}), "c": np.array([True, False])})
        drain.put([9], {"c": np.array([True]), "a": (np.array([3]), {"b": np.array([[3.5]])})})
    found = columns(sink)
    assert found["id"].tolist() == [7, 8, 9]
    assert found["a.0"].tolist() == [1, 2, 3]
    assert found["a.1.b"].tolist() == [[1.5], [2.5], [3.5]]
    assert found["c"].tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["numpy", "jax", "device"])
def test_a_put_larger_than_the_budget_is_split_and_the_budget_is_kept(tmp_path, rows, kind, monkeypatch):
    sink = f"npy:{tmp_path / 'out'}"
    values = np.arange(1000, dtype=np.float32).reshape(100, 10)
    device = SimulatedDevice("random:3")
    memory = device.allocate(values.nbytes)
    fill(memory, values)
    outputs: object = values
    if kind == "jax":
        outputs = pytest.importorskip("jax.numpy").asarray(values)
    elif kind == "device":
        outputs = DeviceArray(device, memory, values.shape, "float32", Fence.EMPTY)
    most = 0
    with Drain(sink, budget_bytes=700) as drain:
        hear = drain._intake._hear

        def watch(message):
            nonlocal most
            most = max(most, drain.statistics().held_bytes)
            hear(message)

        monkeypatch.setattr(drain._intake, "_hear", watch)
        ticket = drain.put(range(100), outputs)
        drain.flush()
        assert ticket.committed
        assert drain.statistics().held_bytes == 0
        assert all(one.pool.allocated_bytes <= 700 for one in drain._intake._stagings.values())
    assert 0 < most <= 700
    assert rows(sink) == {one: values[one].tolist() for one in range(100)}


def test_slots_of_changing_sizes_stay_within_the_budget(tmp_path, rows):
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, budget_bytes=4_096) as drain:
        start = 0
        for count in (1, 200, 3, 150, 255, 2, 7, 256):
            drain.put(np.arange(start, start + count), np.arange(start, start + count, dtype=np.float64))
            assert sum(one.pool.allocated_bytes for one in drain._intake._stagings.values()) <= 4_096
            start += count
    assert rows(sink) == {one: float(one) for one in range(start)}


def test_memory_that_lies_idle_in_small_slots_makes_room_for_a_large_one(tmp_path, rows, monkeypatch):
    gate = threading.Event()

    def held(name, action):
        if name == "write":
            gate.wait(20)
        action()

    monkeypatch.setattr(_publish, "run_step", held)
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink, budget_bytes=4_096, timeout_s=20) as drain:
        for one in range(4):
            drain.put(np.arange(128) + 128 * one, np.zeros(128))
        (staging,) = drain._intake._stagings.values()
        assert staging.pool.allocated_bytes == 4_096
        gate.set()
        drain.flush()
        drain.put(np.arange(512, 512 + 248), np.ones(248))
        assert staging.pool.allocated_bytes <= 4_096
    assert len(rows(sink)) == 760


def test_put_is_bounded_and_says_what_it_waits_for(tmp_path, monkeypatch):
    gate = threading.Event()

    def stuck(name, action):
        if name == "write":
            gate.wait(20)
        action()

    monkeypatch.setattr(_publish, "run_step", stuck)
    drain = Drain(f"npy:{tmp_path / 'out'}", budget_bytes=256, timeout_s=0.2)
    drain.put([1], np.zeros((1, 16)))
    drain.put([2], np.zeros((1, 16)))
    with pytest.raises(BoundError, match=r"no room in 256 bytes.*writing row 1"):
        drain.put([3], np.zeros((1, 16)))
    with pytest.raises(BoundError, match=r"flush .*writing row 1"):
        drain.flush()
    gate.set()
    drain._timeout_s = 20.0
    drain._intake._timeout_s = 20.0
    drain.put([3], np.zeros((1, 16)))
    drain.close()
    assert len(drain.committed) == 3


def test_puts_and_returns_are_told_to_observers(tmp_path):
    events: list[Any] = []
    remove = observe(events.append)
    try:
        with Drain(f"npy:{tmp_path / 'out'}") as drain:
            drain.put([1, 2], np.zeros(2))
            drain.flush()
    finally:
        remove()
    kinds = [(type(event).__name__, getattr(event, "what", getattr(event, "mode", ""))) for event in events]
    wanted = [("Access", "write"), ("Handoff", "lent"), ("Access", "read"), ("Handoff", "returned")]
    assert [kind for kind in kinds if kind in wanted] == wanted


def test_a_put_that_failed_gives_its_slot_back_when_its_copies_are_done(tmp_path, rows, monkeypatch):
    sink = f"npy:{tmp_path / 'out'}"
    device = SimulatedDevice("lazy")
    stream = device.stream("compute")
    memory = device.allocate(400)
    with Drain(sink, budget_bytes=512, timeout_s=2) as drain:
        fill = drain._intake._fill

        def fail(*arguments):
            fill(*arguments)
            raise KeyboardInterrupt

        for batch in range(3):
            produce(device, stream, memory, np.full(100, batch, np.float32))
            array = DeviceArray(device, memory, (1, 100), "float32", device.record(stream))
            monkeypatch.setattr(drain._intake, "_fill", fail)
            with pytest.raises(KeyboardInterrupt):
                drain.put([batch], array)
            monkeypatch.setattr(drain._intake, "_fill", fill)
            drain.put([batch], array)
            drain.flush()
    assert rows(sink) == {batch: [batch] * 100 for batch in range(3)}


@pytest.fixture
def counted(monkeypatch):
    """A simulated device, and the sizes of the slots that were made on it."""
    device = SimulatedDevice("lazy")
    made: list[int] = []
    allocate = device.allocate_host

    def count(size_bytes, **options):
        made.append(size_bytes)
        return allocate(size_bytes, **options)

    monkeypatch.setattr(device, "allocate_host", count)
    return device, made


def small(device) -> DeviceArray:
    return DeviceArray(device, device.allocate(400), (1, 100), "float32", Fence.EMPTY, stable=True)


def test_a_link_that_is_busy_anyway_needs_three_slots(counted, monkeypatch):
    device, made = counted
    monkeypatch.setattr(_intake, "_MADE_BYTES_PER_S", 20.0)  # so patience is as good as endless
    with Drain("null:") as drain:
        for one in range(50):
            drain.put([one], small(device))
    assert len(made) <= 3


def test_more_slots_are_made_when_the_writer_is_slow(counted, tmp_path, monkeypatch):
    device, made = counted
    gate = threading.Event()

    def stuck(name, action):
        if name == "write":
            gate.wait(20)
        action()

    monkeypatch.setattr(_publish, "run_step", stuck)
    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        for one in range(8):
            drain.put([one], small(device))
        gate.set()
    assert len(made) == 8


def test_a_slot_that_fits_is_taken_before_one_that_would_have_to_grow(counted):
    device, made = counted
    large = DeviceArray(device, device.allocate(4_000), (10, 100), "float32", Fence.EMPTY, stable=True)
    with Drain("null:") as drain:
        for turn in range(10):
            drain.put(np.arange(10) + 20 * turn, large)
            drain.put([20 * turn + 10], small(device))
            drain.flush()
    assert len(made) <= 2


def test_a_put_that_is_split_uses_the_same_slots_every_time(counted):
    """Making one takes long, where it has to be pinned."""
    device, made = counted
    memory = device.allocate(1_600)
    with Drain("null:", budget_bytes=2_300) as drain:
        for batch in range(10):
            array = DeviceArray(device, memory, (100, 4), "float32", Fence.EMPTY, stable=True)
            drain.put(np.arange(100) + 100 * batch, array)
    assert set(made) == {832}
    assert len(made) <= 2


@pytest.mark.parametrize("side", ["allocate_host", "allocate"])
def test_a_device_without_memory_for_a_slot_is_named_and_the_drain_goes_on(tmp_path, columns, monkeypatch, side):
    sink = f"npy:{tmp_path / 'out'}"
    first, second = SimulatedDevice("lazy", index=0), SimulatedDevice("lazy", index=1)

    def outputs():
        arrays = {}
        for name, device in (("x", first), ("y", second)):
            memory = device.allocate(400)
            fill(memory, np.ones(100, np.float32))
            arrays[name] = DeviceArray(device, memory, (1, 100), "float32", Fence.EMPTY)
        return arrays

    with Drain(sink, budget_bytes=2_000) as drain:
        values = outputs()
        with monkeypatch.context() as patch:

            def refuse(size_bytes, **_options):
                raise MemoryError(f"no {size_bytes} bytes")

            patch.setattr(second, side, refuse)
            for _ in range(8):  # nothing is lost each time
                with pytest.raises(
                    DeviceError, match=r"simulated:1 has no memory for a slot of 448 bytes.*budget_bytes"
                ):
                    drain.put([0], values)
        drain.put([0], values)
        drain.flush()
        assert drain.statistics().held_bytes == 0
    assert columns(sink)["y"].tolist() == [[1.0] * 100]


def test_a_device_that_is_lost_while_memory_is_made_keeps_no_slot(tmp_path, monkeypatch):
    device = SimulatedDevice("lazy")

    def lose(size_bytes, **_options):
        raise DeviceError(f"the device is lost: {size_bytes}")

    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        monkeypatch.setattr(device, "allocate_host", lose)
        for _ in range(3):
            with pytest.raises(DeviceError, match="lost"):
                drain.put([0], small(device))
        (staging,) = drain._intake._stagings.values()
        states = staging.ring.statistics()
    assert states.filling == 0


def test_a_put_that_fails_on_a_lost_device_says_its_own_reason_and_takes_no_room(tmp_path, monkeypatch):
    device = SimulatedDevice("lazy")

    def lose(*_):
        raise DeviceError("the device is lost")

    with Drain(f"npy:{tmp_path / 'out'}") as drain:

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(drain._intake, "_fill", interrupt)
        monkeypatch.setattr(Staging, "fence_of_copies", lose)
        with pytest.raises(KeyboardInterrupt):
            drain.put([0], small(device))
        assert drain.statistics().held_bytes == 0
