"""What goes wrong on a device in front of a drain, on the simulated one.

Twins on a real one: tests/gpu/test_failures.py. A stream that failed is in test_drain_values.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from interlock import Drain, Feed
from interlock._core._fence import Fence, HostTimeline
from interlock._core._protocols import DeviceArray
from interlock.devices import SimulatedDevice
from interlock.errors import DeviceError


class IsFull:
    """A simulated device that has no memory for anybody but its user."""

    def __init__(self) -> None:
        self.inner = SimulatedDevice("lazy")
        self.is_full = False

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def allocate(self, size_bytes):
        if self.is_full:
            raise MemoryError(f"simulated:0 has no {size_bytes:,} bytes")
        return self.inner.allocate(size_bytes)


def test_a_device_without_memory_for_a_snapshot_is_named_and_what_was_put_before_is_committed(tmp_path):
    device = IsFull()
    memory = device.allocate(64)
    memory.view()[:] = bytes(64)
    value = DeviceArray(device, memory, (4, 4), "float32", Fence.EMPTY)
    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        drain.put([0], np.zeros((1, 4), np.float32))
        device.is_full = True
        with pytest.raises(DeviceError, match=r"simulated:0 has no memory for a slot of 64 bytes: .*has no 64 bytes"):
            drain.put(range(4, 8), value)
        device.is_full = False
        drain.put(range(4, 8), value)
    assert [row for row in range(10) if row in drain.committed] == [0, 4, 5, 6, 7]


def test_a_consumer_that_raises_loses_nothing_that_it_put(tmp_path, rows):
    device = SimulatedDevice("lazy")
    data = np.arange(64, dtype=np.float32)[:, None] * np.ones(16, np.float32)
    feed = Feed(data, batch_size=4, device=device, workers=2, ids=True)
    sink = f"npy:{tmp_path / 'out'}"

    def consume() -> None:
        with feed, Drain(sink) as drain:
            for ids, batch in feed:
                drain.put(ids, batch * 2)
                if ids[0] == 16:
                    raise LookupError("the consumer's own")

    with pytest.raises(LookupError, match="the consumer's own"):
        consume()
    assert {row: value[0] for row, value in rows(sink).items()} == {row: 2.0 * row for row in range(20)}


def test_a_drain_that_waits_for_a_stream_that_hangs_ends_in_bounded_time(tmp_path):
    device = SimulatedDevice("lazy")
    never = HostTimeline("never")
    memory = device.allocate(16)
    stream = device.stream("default")
    device.wait(stream, Fence([(never, never.next_tick())]))
    drain = Drain(f"npy:{tmp_path / 'out'}", timeout_s=0.2)
    drain.put([0], DeviceArray(device, memory, (1, 4), "float32", device.record(stream)))
    with pytest.raises((DeviceError, TimeoutError), match=r"is not done after 0\.2 s"):
        drain.close()
