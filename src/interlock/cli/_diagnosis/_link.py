"""How fast a device's link is, measured through Interlock's own device: what a feed and a drain can reach, no more."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from interlock._core._fence import Fence
from interlock._core._memory import HostMemory
from interlock._waiting import wait
from interlock.cli._diagnosis._facts import GIB, Link
from interlock.devices import open_device
from interlock.devices._cuda_facts import device_facts, pcie_link, time_to_pin
from interlock.errors import InterlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from interlock._core._fence import Timeline
    from interlock._core._protocols import Device, Memory

_REPEATS = 9
_BACK_TO_BACK = 4
"""Copies in one measurement, so that starting and noticing the end weigh little."""
_WARM_UP_S = 0.1
_BOUND_S = 10.0
_PART_OF_DEVICE = 8
"""At most one part of so many of a device's free memory is taken."""


def measure(index: int, copy_bytes: int) -> Iterator[dict[str, Any]]:
    """Measure a CUDA device; give what was found as plain values.

    What says more of the host than of the link (ordinary memory, pinning) is measured with the first device only.

    Args:
        index: Which.
        copy_bytes: Size of one copy; less where the device has little memory left.
    """
    facts = device_facts(index, 0)
    size = min(copy_bytes, max(1 << 20, (facts.memory_free_bytes or GIB) // _PART_OF_DEVICE))
    link = Link(f"cuda:{index}", size, _REPEATS)
    try:
        link = measure_copies(open_device(f"cuda:{index}"), size, pageable=not index)
        pcie = pcie_link(facts.pci_bus_id)  # now: an idle link may be slower than it can be
        if pcie is not None:
            yield {"pcie": {"index": index, **asdict(pcie)}}
        if not index:
            link = replace(
                link,
                pin_ms_per_gib=_pin_ms_per_gib(index, size, huge_pages=False),
                pin_huge_pages_ms_per_gib=_pin_ms_per_gib(index, size, huge_pages=True),
            )
    except (InterlockError, MemoryError) as error:
        link = replace(link, error=str(error) or type(error).__name__)
    yield {"link": asdict(link)}


def _pin_ms_per_gib(index: int, size_bytes: int, *, huge_pages: bool) -> float:
    seconds = median(time_to_pin(index, size_bytes, huge_pages=huge_pages) for _ in range(3))
    return round(seconds * 1e3 * GIB / size_bytes, 1)


def measure_copies(device: Device, copy_bytes: int, *, pageable: bool = True, repeats: int = _REPEATS) -> Link:
    """Return how fast copies of `copy_bytes` to and from `device` are.

    Takes twice as much pinned memory, as much ordinary memory, and twice as much of the device's while it runs.

    Args:
        device: Which.
        copy_bytes: Size of one copy.
        pageable: Whether copies from and to ordinary memory are measured too.
        repeats: Measurements of each figure.

    Raises:
        DeviceError: The device refused.
        MemoryError: There is no such amount.
    """
    there, back = device.stream("feed"), device.stream("drain")
    near, far = device.allocate_host(copy_bytes), device.allocate(copy_bytes)
    second_near, second_far = device.allocate_host(copy_bytes), device.allocate(copy_bytes)

    def speed(count: int, *copies: tuple[Memory, Memory, Timeline]) -> float:
        run = _runner(device, copies, count)
        run()
        return round(copy_bytes * count * len(copies) / 1e9 / median(run() for _ in range(repeats)), 2)

    both = ((far, near, there), (second_near, second_far, back))
    warm_s = time.perf_counter() + _WARM_UP_S
    while _runner(device, both, 1)() and time.perf_counter() < warm_s:
        pass  # an idle device and its link run slower
    link = Link(
        device.name,
        copy_bytes,
        repeats,
        pinned_to_device_gb_per_s=speed(_BACK_TO_BACK, both[0]),
        pinned_to_host_gb_per_s=speed(_BACK_TO_BACK, both[1]),
        pinned_both_gb_per_s=speed(_BACK_TO_BACK, *both),
    )
    if not pageable:
        return link
    ordinary = HostMemory.allocate(copy_bytes, "host", on_device=False)
    ordinary.view()[:] = bytes(copy_bytes)  # so that its pages exist
    return replace(
        link,
        pageable_to_device_gb_per_s=speed(1, (far, ordinary, there)),
        pageable_to_host_gb_per_s=speed(1, (ordinary, far, back)),
    )


def _runner(device: Device, copies: Sequence[tuple[Memory, Memory, Timeline]], count: int) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for _ in range(count):
            for target, source, stream in copies:
                device.copy(target, source, stream)
        done = Fence.EMPTY.join(*(device.record(stream) for _, _, stream in copies))
        # Asked without a pause: `wait` may notice up to a millisecond late, which would be seen in the figures.
        while not done.poll(waiting=True) and time.perf_counter() - began < _BOUND_S:
            pass
        seconds = time.perf_counter() - began
        wait(done, timeout_s=_BOUND_S, what=f"a copy of {copies[0][0].size_bytes} bytes on {device.name}")
        return seconds

    return run
