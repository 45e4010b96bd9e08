"""Host memory, the loan that tells when its last reader has let go, and the pool with its budget."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import BoundError, UsageError
from interlock.lowlevel import HostDevice, HostMemory, Inbox, Loan, Region, SimulatedDevice, SlotIndex, SlotPool

if TYPE_CHECKING:
    import weakref

    from interlock.lowlevel import Memory

PROPERTY = settings(derandomize=True, database=None, deadline=None)


def allocate(size_bytes: int) -> HostMemory:
    return HostMemory.allocate(size_bytes, "host", on_device=False)


# ------------------------------------------------------------ memory


@pytest.mark.parametrize("size_bytes", [1, 4095, 4096, 4 << 20])
def test_memory_is_zeroed_page_aligned_and_of_the_size_asked_for(size_bytes: int):
    memory = allocate(size_bytes)
    assert memory.address % 4096 == 0
    assert memory.view().nbytes == size_bytes
    assert not any(memory.view()[:4096])
    assert not memory.view().readonly


def test_an_impossible_amount_is_a_memory_error():
    with pytest.raises(MemoryError, match="host memory"):
        allocate(1 << 62)


@PROPERTY
@given(st.data())
def test_a_slice_of_a_slice_is_the_slice_of_the_sum(data: st.DataObject):
    content = bytes(range(200))
    memory = allocate(200)
    memory.view()[:] = content
    start = data.draw(st.integers(0, 200))
    size = data.draw(st.integers(0, 200 - start))
    inner_start = data.draw(st.integers(0, size))
    inner_size = data.draw(st.integers(0, size - inner_start))
    part = memory.slice(start, size).slice(inner_start, inner_size)
    offset = start + inner_start
    assert bytes(part.view()) == content[offset : offset + inner_size]
    assert part.region == Region(memory.region.allocation, offset, inner_size)
    assert part.address == memory.address + offset


def test_views_outlive_the_object():
    view = allocate(100).slice(10, 20).view()
    gc.collect()
    view[:] = bytes(range(20))
    assert bytes(view) == bytes(range(20))


@PROPERTY
@given(*[st.integers(0, 12)] * 4)
def test_regions_overlap_exactly_when_they_share_a_byte(start: int, size: int, other_start: int, other_size: int):
    allocation = allocate(1).region.allocation
    one, other = Region(allocation, start, size), Region(allocation, other_start, other_size)
    shared = set(range(start, start + size)) & set(range(other_start, other_start + other_size))
    assert one.overlaps(other) == other.overlaps(one) == bool(shared)


def test_regions_of_two_allocations_never_overlap():
    one, other = allocate(10), allocate(10)
    assert not one.region.overlaps(other.region)
    assert one.region.overlaps(one.slice(9, 1).region)


# ------------------------------------------------------------ loan


def lend(memory: HostMemory, inbox: Inbox[Any]) -> tuple[np.ndarray[Any, Any], weakref.ref[Loan]]:
    loan = Loan(memory)
    return np.asarray(loan), loan.on_end(inbox.post)


def test_an_array_from_a_loan_is_the_memory_itself():
    memory = allocate(4096)
    array, _reference = lend(memory, Inbox())
    assert array.ctypes.data == memory.address
    assert array.dtype == np.uint8
    assert array.flags.writeable
    array[:3] = (1, 2, 3)
    assert bytes(memory.view()[:3]) == b"\x01\x02\x03"


@pytest.mark.parametrize(
    "narrow",
    [
        lambda array: array[10:20],
        lambda array: array.view(np.float32),
        lambda array: array.view(np.int16).reshape(4, -1)[1:, ::2],
        lambda array: array[:64].reshape(8, 8).T[3],
        lambda array: array[100:101].reshape(()),
        memoryview,
        lambda array: np.asarray(memoryview(array))[5:],
        lambda array: np.from_dlpack(array)[1:],
    ],
)
def test_a_view_of_a_view_holds_the_loan_though_numpy_forgets_the_chain(narrow: Any):
    """NumPy points each view at the root array, so only the root's own base can tell the end."""
    inbox: Inbox[Any] = Inbox()
    array, reference = lend(allocate(1024), inbox)
    kept = narrow(array)
    del array
    gc.collect()
    assert inbox.take_nowait() is None
    del kept
    assert inbox.take_nowait() is reference, "the end is told at once, and which loan it was"
    assert inbox.take_nowait() is None, "the end is told once"


def test_a_copy_does_not_hold_the_loan():
    inbox: Inbox[Any] = Inbox()
    array, reference = lend(allocate(1024), inbox)
    copied = array[3:9].copy()
    del array
    assert inbox.take_nowait() is reference
    assert copied.size == 6


def test_the_memory_outlives_the_ring_that_lent_it():
    inbox: Inbox[Any] = Inbox()
    array, reference = lend(allocate(1024), inbox)
    array[:] = 7
    gc.collect()
    assert (array == 7).all()
    del array
    assert inbox.take_nowait() is reference


def test_a_part_of_memory_can_be_lent():
    memory = allocate(100)
    array, _reference = lend(memory.slice(40, 20), Inbox())
    array[:] = 1
    assert bytes(memory.view()) == bytes(40) + b"\x01" * 20 + bytes(40)


# ------------------------------------------------------------ pool


def slot(number: int) -> SlotIndex:
    return SlotIndex(number)


def test_a_slot_keeps_its_memory_until_it_needs_more():
    pool = SlotPool(HostDevice(), 10_000, name="pool", mirrored=True)
    first = pool.memory(slot(0), 100)
    assert pool.memory(slot(0), 50) is first
    assert pool.memory(slot(0), 100) is first
    larger = pool.memory(slot(0), 200)
    assert larger.staging.size_bytes == 200
    assert pool.allocated_bytes == 200


@pytest.mark.parametrize(
    ("device", "mirrored", "same"),
    [
        (HostDevice(), True, True),
        (HostDevice(), False, True),
        (SimulatedDevice(), True, False),
        (SimulatedDevice(), False, True),
    ],
)
def test_device_memory_is_made_only_where_it_is_needed(device, mirrored: bool, same: bool):  # noqa: FBT001
    memory = SlotPool(device, 1000, name="pool", mirrored=mirrored).memory(slot(0), 100)
    assert (memory.device is memory.staging) == same
    assert memory.device.size_bytes == memory.staging.size_bytes


def test_the_budget_is_kept_and_named():
    pool = SlotPool(HostDevice(), 1000, name="the feed", mirrored=True)
    pool.memory(slot(0), 400)
    pool.memory(slot(1), 600)
    with pytest.raises(BoundError, match=r"the feed needs a slot of 1 bytes: 1,000 of its 1,000 bytes") as caught:
        pool.memory(slot(2), 1)
    assert "budget_bytes" in caught.value.hint
    assert pool.allocated_bytes == 1000
    with pytest.raises(BoundError):
        pool.memory(slot(1), 601)
    assert pool.memory(slot(1), 600).staging.size_bytes == 600, "a refused request costs the slot nothing"


def test_a_slot_that_grows_gives_its_old_bytes_back_first():
    pool = SlotPool(HostDevice(), 1000, name="pool", mirrored=True)
    pool.memory(slot(0), 900)
    assert pool.memory(slot(0), 1000).staging.size_bytes == 1000


def test_a_dropped_slot_frees_its_part_of_the_budget():
    pool = SlotPool(HostDevice(), 1000, name="pool", mirrored=True)
    pool.memory(slot(0), 1000)
    pool.drop(slot(0))
    pool.drop(slot(0))
    pool.drop(slot(7))
    assert pool.allocated_bytes == 0
    pool.memory(slot(1), 1000)


def test_a_device_without_memory_leaves_the_budget_untouched():
    class Full:
        name = "full"
        host_visible = False

        def allocate_host(self, size_bytes: int, *, shared: bool = False) -> Memory:  # noqa: ARG002
            return allocate(size_bytes)

        def allocate(self, size_bytes: int) -> Memory:  # noqa: ARG002 - part of the protocol
            raise MemoryError("full")

    device: Any = Full()
    pool = SlotPool(device, 1000, name="pool", mirrored=True)
    for _ in range(2):
        with pytest.raises(MemoryError):
            pool.memory(slot(0), 1000)
        assert pool.allocated_bytes == 0


def test_allocating_nothing_is_refused():
    with pytest.raises(UsageError, match="0 bytes"):
        allocate(0)
