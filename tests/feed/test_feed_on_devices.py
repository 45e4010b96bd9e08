"""Feeds on the simulated device: the same batches under every schedule, whatever is late."""

from __future__ import annotations

import numpy as np
import pytest

from interlock import Feed, prefetch
from interlock.lowlevel import SimulatedDevice

SCHEDULES = ["lazy", "eager", "starve:feed", *(f"random:{seed}" for seed in range(6))]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_every_schedule_gives_the_same_batches_kept_or_dropped(schedule, to):
    data = {"x": np.arange(300, dtype=np.float32).reshape(60, 5), "y": np.arange(60, dtype=np.int32)}
    feed = Feed(data, batch_size=8, to=to, device=SimulatedDevice(schedule), workers=2)
    kept = []
    for epoch in range(2):
        for number, batch in enumerate(feed):
            start = number * 8
            assert np.array_equal(np.asarray(batch["x"]), data["x"][start : start + 8]), (epoch, number)
            if number % 3 == epoch:
                kept.append((start, batch))
    for start, batch in kept:
        assert np.array_equal(np.asarray(batch["x"]), data["x"][start : start + 8])
        assert np.array_equal(np.asarray(batch["y"]), data["y"][start : start + 8])
    assert feed.statistics().host_syncs == 16


def test_the_host_device_needs_no_host_synchronisation():
    feed = Feed(np.zeros((20, 3)), batch_size=4, device="host")
    assert len(list(feed)) == 5
    assert feed.statistics().host_syncs == 0


def test_a_device_may_be_named_with_its_schedule():
    assert [b.tolist() for b in prefetch([np.arange(2)], to="numpy", device="simulated:lazy")] == [[0, 1]]


def test_a_feed_that_does_not_wait_for_the_copy_is_caught_by_the_lazy_schedule(monkeypatch):
    """The planted fault: hand-over without the wait. What the consumer reads then is poison."""
    monkeypatch.setattr("interlock._waiting.wait", lambda *_, **__: None)
    batch = next(iter(Feed(np.zeros((8, 3), np.float32), batch_size=8, device="simulated:lazy", workers=0)))
    assert np.isnan(batch).all()
