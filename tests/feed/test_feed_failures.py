"""What goes wrong on a device while a feed works, on the simulated one.

Twins on a real one: tests/gpu/test_failures.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from interlock import Feed
from interlock.devices import SimulatedDevice
from interlock.errors import DeviceError

DATA = np.arange(64, dtype=np.float32)[:, None] * np.ones(256, np.float32)


class IsFull:
    """A simulated device with so much memory and no more, until it gets more."""

    def __init__(self, room_bytes: int) -> None:
        self.inner = SimulatedDevice("lazy")
        self.room_bytes = room_bytes

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def allocate(self, size_bytes):
        if size_bytes > self.room_bytes:
            raise MemoryError(f"simulated:0 has no {size_bytes:,} bytes: {self.room_bytes:,} are free")
        self.room_bytes -= size_bytes
        return self.inner.allocate(size_bytes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_device_is_named_with_what_is_free_and_a_feed_works_again_when_there_is_room(workers: int):
    device = IsFull(5000)
    feed = Feed(DATA, batch_size=4, device=device, workers=workers)
    batches = iter(feed)
    kept = [next(batches)]
    with pytest.raises(MemoryError, match=r"simulated:0 has no 4,096 bytes: 904 are free"):
        kept.extend(batches)
    device.room_bytes = 1 << 20
    assert [batch[0, 0] for batch in feed] == list(range(0, 64, 4))
    assert kept[0][0, 0] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_failed_ends_the_feed_with_its_cause(workers: int):
    device = SimulatedDevice("lazy")
    batches = iter(Feed(DATA, batch_size=4, device=device, workers=workers))
    next(batches)

    def lost() -> None:
        raise OSError("an illegal address was met")

    device.launch(device.stream("feed"), lost)
    with pytest.raises((DeviceError, OSError), match="an illegal address was met"):
        list(batches)
    with pytest.raises((DeviceError, OSError), match="an illegal address was met"):
        next(iter(Feed(DATA, batch_size=4, device=device, workers=workers)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_consumer_that_raises_leaves_the_feed_as_it_was(workers: int):
    device = SimulatedDevice("lazy")
    feed = Feed(DATA, batch_size=4, device=device, workers=workers, ids=True)

    def consume() -> None:
        for ids, _ in feed:
            if ids[0] == 16:
                raise LookupError("the consumer's own")

    with pytest.raises(LookupError, match="the consumer's own"):
        consume()
    assert [batch[0, 0] for _, batch in feed] == list(range(0, 64, 4))
