"""Events are plain values for those who listen, and listeners never break the program."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from interlock.lowlevel import (
    Access,
    Alloc,
    AllocationId,
    Event,
    Free,
    Handoff,
    HostDevice,
    HostWait,
    Record,
    Region,
    SimulatedDevice,
    Wait,
    observe,
    wait,
)

REGION = Region(AllocationId(1), 0, 4)
EVERY_KIND: list[Event] = [
    Alloc("host:1", AllocationId(1), 4, "host"),
    Free("host:1", AllocationId(1)),
    Access("stream", REGION, "read", "copy"),
    Record("stream", 3),
    Wait("stream", (("other", 2),)),
    HostWait("host:1", (("stream", 3),)),
    Handoff("host:1", REGION, "lent", "jax", 7),
]


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(is_plain(part) for part in value)
    if isinstance(value, Region):
        return is_plain(dataclasses.astuple(value))
    return value is None or type(value) in {str, int, bool}


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_an_event_is_frozen_hashable_and_holds_plain_values_only(event: Event):
    assert all(is_plain(getattr(event, field.name)) for field in dataclasses.fields(event))
    assert hash(event) == hash(dataclasses.replace(event))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.timeline = "changed"  # type: ignore[misc] # that is the point


@pytest.mark.parametrize("make", [HostDevice, SimulatedDevice])
def test_a_pipeline_tells_its_accesses_and_edges_in_order(make: Any):
    seen: list[Event] = []
    remove = observe(seen.append)
    try:
        device = make()
        source, target = device.allocate_host(4), device.allocate(4)
        first, second = device.stream("first"), device.stream("second")
        device.copy(target, source, first)
        fence = device.record(first)
        device.wait(second, fence)
        wait(device.record(second), timeout_s=5, what="the pipeline")
    finally:
        remove()
    here = f"host:{threading.get_ident()}"
    assert [dataclasses.replace(event, site=()) for event in seen] == [
        Alloc(here, source.region.allocation, 4, device.name),
        Alloc(here, target.region.allocation, 4, device.name),
        Access(first.name, source.region, "read", "copy", here),
        Access(first.name, target.region, "write", "copy", here),
        Record(first.name, 1),
        Wait(second.name, ((first.name, 1),)),
        Record(second.name, 1),
        HostWait(here, ((second.name, 1),)),
    ]
    assert all(event.site[0][0] == __file__ for event in seen if not isinstance(event, Alloc))
    for event in seen:
        assert all(is_plain(getattr(event, field.name)) for field in dataclasses.fields(event))


def test_several_observers_hear_the_same_and_each_stops_alone():
    first: list[Event] = []
    second: list[Event] = []
    stop_first, stop_second = observe(first.append), observe(second.append)
    HostDevice().allocate(4)
    stop_first()
    stop_first()
    HostDevice().allocate(4)
    stop_second()
    HostDevice().allocate(4)
    assert len(first) == 1
    assert len(second) == 2
    assert first == second[:1]


def test_an_observer_that_raises_is_removed_with_a_warning_and_the_program_goes_on():
    calls = []
    after: list[Event] = []

    def faulty(event: Event) -> None:
        calls.append(event)
        raise ValueError("cannot count")

    stop_faulty, stop_after = observe(faulty), observe(after.append)
    try:
        with pytest.warns(RuntimeWarning, match=r"observer was removed: it raised ValueError\('cannot count'\)"):
            memory = HostDevice().allocate(4)
        assert memory.size_bytes == 4
        HostDevice().allocate(4)
    finally:
        stop_faulty()
        stop_after()
    assert len(calls) == 1
    assert len(after) == 2, "the others hear everything"


def test_allocation_ids_are_never_given_out_twice():
    seen = {HostDevice().allocate(1).region.allocation for _ in range(200)}
    assert len(seen) == 200
