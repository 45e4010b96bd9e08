"""`verify=True` without a GPU: silent over correct hand-offs; faults planted in them are named."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interlock import Feed, prefetch
from interlock._core._fence import Fence
from interlock._core._lease import LeaseState
from interlock.check._hazards import Fold
from interlock.devices import SimulatedDevice
from interlock.errors import CorruptionError, DeviceError
from interlock.feed._staging import Staging
from interlock.feed._verify import Verifier
from interlock.frameworks import framework_named
from interlock.lowlevel import observe

SCHEDULES = ["lazy", "eager", "starve:feed", "random:3", "pct:5"]
ROWS = 256


def source(batches: int) -> dict[str, np.ndarray]:
    rows = np.arange(batches * ROWS, dtype=np.float32)
    return {"x": np.repeat(rows[:, None], 128, axis=1), "y": np.arange(batches * ROWS)}


class Double:
    """A device that does something wrong on top of the simulated one, which does everything else."""

    def __init__(self, schedule: str = "lazy") -> None:
        self.inner = SimulatedDevice(schedule)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class LandsLate(Double):
    """Says that a copy is done before it is."""

    def record(self, stream):  # noqa: ARG002 - as in `Device`
        return Fence.EMPTY


class CopiesShifted(Double):
    """Copies a range that begins one row too late; the right number of bytes, and most of them right."""

    def copy(self, target, source, stream):
        shift = 512
        self.inner.copy(target.slice(0, shift), source.slice(shift, shift), stream)
        rest = target.size_bytes - shift
        self.inner.copy(target.slice(shift, rest), source.slice(shift, rest), stream)


class SwapsRows(Double):
    """Copies everything, two rows in each other's place: sums of bytes or words see nothing."""

    def copy(self, target, source, stream):
        one, other = slice(0, 512), slice(512, 1024)
        for to, start in ((one, other), (other, one)):
            self.inner.copy(target.slice(to.start, 512), source.slice(start.start, 512), stream)
        self.inner.copy(
            target.slice(1024, target.size_bytes - 1024), source.slice(1024, source.size_bytes - 1024), stream
        )


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_said_of_a_correct_feed(schedule: str, to: str):
    kept = []
    with Feed(source(6), batch_size=ROWS, to=to, device=SimulatedDevice(schedule), workers=2, verify=True) as feed:
        for number, batch in enumerate(feed):
            if number % 2:
                kept.append((number, batch))
    for number, batch in kept:
        assert np.asarray(batch["x"])[0, 0] == number * ROWS


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_nothing_is_said_of_a_correct_feed_on_the_host(to: str):
    data = {
        "f": np.linspace(0, 1, 40),
        "i": np.arange(40) << 33,
        "b": np.arange(40) % 2 > 0,
        "h": np.arange(40, dtype="f2"),
    }
    feed = Feed(data, batch_size=16, to=to, verify=True)
    assert [len(batch["b"]) for _ in range(2) for batch in feed] == [16, 16, 8] * 2


def test_nothing_is_said_of_a_loader_that_recycles_its_buffer():
    buffer = np.zeros((64, 64), np.float32)

    def loader():
        for number in range(8):
            buffer.fill(number)
            yield {"x": buffer, "name": str(number)}

    seen = [(batch["name"], float(batch["x"].max())) for batch in prefetch(loader(), to="jax", verify=True)]
    assert seen == [(str(number), number) for number in range(8)]


def test_samples_that_are_left_out_are_not_looked_for():
    class Holey:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index % 3 == 0:
                raise ValueError("broken")
            return np.full(3, index)

    feed = Feed(Holey(), batch_size=4, on_error="skip", verify=True)
    assert [batch[:, 0].tolist() for batch in feed] == [[1, 2], [4, 5, 7]]


def test_a_program_may_write_to_its_own_numpy_batch():
    for batch in Feed(source(4), batch_size=ROWS, verify=True, depth=1, workers=0):
        batch["x"][:] = -1


def test_a_copy_that_lands_late_is_named():
    feed = Feed(source(4), batch_size=ROWS, device=LandsLate(), workers=1, verify=True)
    with pytest.raises(CorruptionError, match=r"leaf 'x' of batch 0 .* hold 0xFF: they were read before") as caught:
        next(iter(feed))
    assert (caught.value.number, caught.value.leaf) == (0, "x")
    assert isinstance(caught.value, DeviceError)


@pytest.mark.parametrize("device", [CopiesShifted, SwapsRows])
def test_a_copy_to_the_wrong_place_is_named(device: type[Double]):
    feed = Feed(source(4), batch_size=ROWS, device=device(), workers=1, verify=True)
    with pytest.raises(CorruptionError, match=r"leaf 'x' of batch 0 .* 1 of 2 parts .* in bytes 0 to 65,536") as caught:
        next(iter(feed))
    assert caught.value.leaf == "x"


def test_the_batch_whose_bytes_came_in_its_place_is_named(monkeypatch: pytest.MonkeyPatch):
    first = bytearray()
    note = Verifier.filled

    def filled(self, work, slot):
        note(self, work, slot)
        if work.number:
            slot.staging.view()[:] = first
        else:
            first.extend(slot.staging.view())

    monkeypatch.setattr(Verifier, "filled", filled)
    iterator = iter(Feed(source(4), batch_size=ROWS, workers=1, verify=True))
    next(iterator)
    with pytest.raises(CorruptionError, match=r"batch 1 .*; they are those of batch 0"):
        next(iterator)


@pytest.mark.parametrize("device", ["host", "simulated:lazy"])
def test_a_slot_that_is_used_again_too_early_is_named(device: str, monkeypatch: pytest.MonkeyPatch):
    """The consumer still holds its array, and so does JAX: the poison of the next claim shows it."""
    hand_over = Staging.hand_over

    def taken_back_at_once(self, work):
        tree = hand_over(self, work)
        self.returned(next(reference for reference, (lease, _) in self._loans.items() if lease is work.lease))
        return tree

    monkeypatch.setattr(Staging, "hand_over", taken_back_at_once)
    iterator = iter(Feed(source(4), batch_size=ROWS, to="jax", device=device, workers=0, verify=True))
    kept = next(iterator)
    with pytest.raises(CorruptionError, match=r"of batch 0 was wrong when batch 1 was handed over"):
        next(iterator)
    del kept


def test_a_slot_that_came_back_holds_poison():
    iterator = iter(Feed(source(3), batch_size=ROWS, workers=0, depth=1, verify=True))
    batch = next(iterator)
    address, size = batch["x"].ctypes.data, batch["x"].nbytes
    del batch
    assert iterator.pipeline.idle  # takes in what came back
    assert ctypes.string_at(address, size) == b"\xff" * size
    assert next(iterator)["x"][0, 0] == ROWS


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_poison_of_slots_that_came_back_is_in_order_with_everything_else(schedule: str):
    """The fold that finds hazards sees the poison as a write, and finds none."""
    for thread in threading.enumerate():  # of a pass that another test left: the fold would hear half of what it does
        if thread.name.startswith("interlock-feed"):
            thread.join(10)
    fold = Fold()
    stop = observe(fold.add)
    for _ in Feed(source(6), batch_size=ROWS, device=SimulatedDevice(schedule), workers=2, verify=True):
        pass
    stop()
    assert fold.findings == []


def test_a_worker_may_fill_a_slot_while_others_are_swept():
    """Garbage is collected where memory is taken, and other threads run meanwhile: as here the callback does."""
    device = SimulatedDevice("eager")
    verifier = Verifier(device, framework_named("numpy"), device.stream("feed"), 10.0)
    lent: Any = SimpleNamespace(lease=SimpleNamespace(state=LeaseState.LENT), leaves=())
    verifier._filled.update(dict.fromkeys(range(5000), lent))  # more than there are tuples to reuse
    numbers = itertools.count(5000)

    def fill(*_):
        verifier._filled[next(numbers)] = lent

    threshold = gc.get_threshold()
    gc.callbacks.append(fill)
    gc.set_threshold(1)
    try:
        for _ in range(20):
            verifier.sweep()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(fill)
    assert set(range(5000)) <= set(verifier._filled)
