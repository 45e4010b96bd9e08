"""The first programs that the checker checks are ours: feed and drain are clean, a fault planted in each is found."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from interlock import Drain, Feed, prefetch
from interlock._core._ring import Ring
from interlock.check._hazards import Fold
from interlock.drain._lane import Lane
from interlock.lowlevel import DeviceArray, LeaseState, SimulatedDevice, observe

SCHEDULES = ["lazy", "eager", "starve:feed", "starve:drain", "starve:compute", *(f"random:{seed}" for seed in range(5))]


@contextmanager
def folded():
    fold = Fold()
    stop = observe(fold.add)
    try:
        yield fold
    finally:
        stop()


def kinds(fold: Fold) -> set[str]:
    return {finding.kind for finding in fold.findings}


def feed_program(device: SimulatedDevice) -> None:
    data = np.arange(240, dtype=np.float32).reshape(60, 4)
    feed = Feed(data, batch_size=8, device=device, workers=2, depth=3)
    kept = []
    for epoch in range(2):
        for number, batch in enumerate(feed):
            if number % 3 == epoch:
                kept.append(batch)
    for batch in prefetch([np.ones(3), np.zeros(3)], to="torch", device=device):
        del batch


def drain_program(device: SimulatedDevice, folder: Any, puts: int = 5, **options: Any) -> None:
    stream = device.stream("compute")
    output = device.allocate(8 * 4 * 4)
    with Drain(f"npy:{folder}/out", **options) as drain:
        for number in range(puts):
            device.launch(stream, lambda: None, writes=[output], name="forward")
            array = DeviceArray(device, output, (8, 4), "float32", device.record(stream))
            drain.put(np.arange(8) + 8 * number, {"y": array})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_feed_and_drain_are_clean_under_every_schedule(schedule, tmp_path):
    with folded() as fold:
        feed_program(SimulatedDevice(schedule))
        drain_program(SimulatedDevice(schedule), tmp_path)
    assert fold.steps > 100
    assert fold.findings == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_drain_of_two_writers_is_clean_under_every_schedule(schedule, tmp_path, monkeypatch):
    """Few slots, which come back from either writer and are filled again."""
    began, writers = threading.Barrier(2), set()
    land = Lane._land

    def both(lane: Lane, job: Any, rows: str) -> Any:
        if lane not in writers:
            writers.add(lane)
            began.wait(20)
        return land(lane, job, rows)

    monkeypatch.setattr(Lane, "_land", both)
    with folded() as fold:
        drain_program(SimulatedDevice(schedule), tmp_path, 24, writers=2, shard_bytes=1, budget_bytes=1024)
    assert len(writers) == 2
    assert fold.findings == []


def test_a_ring_that_frees_its_slot_at_hand_over_is_found(monkeypatch):
    """The corrupted feed, planted in our own ring."""
    lend = Ring.lend_nowait

    def lend_and_forget(ring: Ring) -> Any:
        lease = lend(ring)
        if lease is not None:
            ring._free.append(lease.slot)
        return lease

    monkeypatch.setattr(Ring, "lend_nowait", lend_and_forget)
    with folded() as fold:
        kept = list(Feed(np.zeros((40, 4), np.float32), batch_size=4, workers=0, depth=1))
    assert len(kept) == 10
    assert kinds(fold) == {"recycled"}


def test_a_feed_that_does_not_wait_for_its_copy_is_found(monkeypatch):
    monkeypatch.setattr("interlock._waiting.wait", lambda *_, **__: None)
    with folded() as fold:
        feed_program(SimulatedDevice("lazy"))
    assert "early-read" in kinds(fold)


def test_a_feed_that_refills_its_staging_before_the_copy_has_read_it_is_found(monkeypatch):
    def returned(staging: Any, reference: Any) -> None:
        lease, _ = staging._loans.pop(reference)
        staging.ring.retire(lease)
        staging.ring.collect()

    monkeypatch.setattr("interlock.feed._staging.Staging.returned", returned)
    monkeypatch.setattr("interlock._waiting.wait", lambda *_, **__: None)
    monkeypatch.setattr(Ring, "collect", _collect_without_proof)
    with folded() as fold:
        for batch in Feed(np.zeros((64, 4), np.float32), batch_size=4, workers=0, depth=1, device="simulated:lazy"):
            del batch
    assert "early-overwrite" in kinds(fold)


def _collect_without_proof(ring: Ring) -> int:
    freed = 0
    for lease in list(ring.leases(LeaseState.RETIRING)):
        del ring._open[lease.sequence]
        ring._free.append(lease.slot)
        freed += 1
    ring._retiring = []
    return freed


def test_a_drain_whose_writer_does_not_wait_is_found(monkeypatch, tmp_path):
    """The zeros in the predictions, planted in our own drain."""
    monkeypatch.setattr("interlock.drain._lane.wait", lambda *_, **__: None)
    with folded() as fold:
        drain_program(SimulatedDevice("lazy"), tmp_path)
    assert "early-read" in kinds(fold)


def test_a_drain_whose_snapshot_is_not_ordered_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr("interlock.drain._staging.Staging._own_streams", lambda *_: [])
    monkeypatch.setattr("interlock.drain._intake.Intake._settle", lambda *_: None)
    with folded() as fold:
        drain_program(SimulatedDevice("lazy"), tmp_path)
    assert "unordered-write" in kinds(fold)
