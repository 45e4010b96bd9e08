"""What goes wrong on a device while a feed works, on the simulated one.

Twins on a real one: tests/gpu/test_failures.py.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Literal

import numpy as np
import pytest

from interlock import Feed
from interlock.devices import SimulatedDevice
from interlock.errors import BoundError, DeviceError
from interlock.feed._iteration import BatchIterator
from interlock.feed._staging import Staging
from interlock.testing import gate

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
    feed = Feed(
        DATA, batch_size=4, device=device, workers=workers, depth=1
    )  # the first batch has the room, not another
    batches = iter(feed)
    kept = [next(batches)]
    with pytest.raises(MemoryError, match=r"simulated:0 has no 4,096 bytes: 904 are free"):
        kept.extend(batches)
    device.room_bytes = 1 << 20
    assert [batch[0, 0] for batch in feed] == list(range(0, 64, 4))
    assert kept[0][0, 0] == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_no_sample_is_skipped_because_a_device_is_full(workers: int, on_error: Literal["raise", "skip"]):
    feed = Feed(list(DATA), batch_size=4, device=IsFull(100), workers=workers, on_error=on_error)
    with pytest.raises(MemoryError, match="100 are free"):
        next(iter(feed))
    assert not feed.failures


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


def test_a_slot_whose_copy_took_too_long_comes_back_when_it_is_done():
    """There is one slot; the pass that gave up on it has ended."""
    device = SimulatedDevice("eager")
    feed = Feed(DATA[:8], batch_size=4, device=device, workers=0, budget_bytes=5000, timeout_s=0.1)
    with gate(device.stream("feed"), device=device), pytest.raises(BoundError, match="the copy of batch 0"):
        next(iter(feed))
    found = []
    for batch in feed:
        found.append(float(batch[0, 0]))
        del batch
    assert found == [0, 4]


def test_an_interrupt_between_two_steps_leaves_no_slot_behind(monkeypatch: pytest.MonkeyPatch):
    """There is one slot, and it has been given to the consumer for the ring, but not yet to anybody else."""
    feed = Feed(DATA[:8], batch_size=4, workers=0, budget_bytes=5000, timeout_s=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "hand_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(feed))
    found = []
    for batch in feed:
        found.append(float(batch[0, 0]))
        del batch
    assert found == [0, 4]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_may_be_closed_from_inside_its_own_next(workers: int, monkeypatch: pytest.MonkeyPatch):
    """As by a signal's handler, or by a source that is read on the consumer's thread."""
    feed = Feed(DATA, batch_size=4, workers=workers)
    hand_over = Staging.hand_over

    def closing(staging, work):
        if work.number == 1:
            feed.close()
        return hand_over(staging, work)

    monkeypatch.setattr(Staging, "hand_over", closing)
    kept = list(feed)
    assert [int(batch[0, 0]) for batch in kept] == [0, 4]
    assert [int(batch[0, 0]) for batch in feed] == [0, 4]  # and read again


@pytest.mark.parametrize("line", range(1, 10))
def test_a_signal_s_handler_may_close_a_pass_wherever_its_next_is(line: int):
    feed = Feed(DATA, batch_size=4, workers=0)
    given: list[Any] = []
    batches, lines = iter(feed), 0

    def handle(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code is not BatchIterator.__next__.__code__:
            return None
        lines += event == "line"
        if event == "line" and lines == line:
            batches.close()
        return handle

    def read() -> None:
        sys.settrace(handle)
        given.extend(batches)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(given) <= 2
    assert len(feed._passes._spare) == 1
    assert [int(batch[0, 0]) for batch in feed] == list(range(0, 64, 4))
    assert feed.statistics().batches == len(given) + 16
