"""What only the simulated device does: poison, patience with polls, kernels, and waiting across devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from interlock.errors import DeviceError, UsageError
from interlock.lowlevel import Fence, HostDevice, HostTimeline, Memory, SimulatedDevice, open_device, wait

if TYPE_CHECKING:
    from interlock.lowlevel import Device

POISON = b"\xff"


def done(fence: Fence) -> None:
    wait(fence, timeout_s=10, what="the program")


def host(device: Device, content: bytes) -> Memory:
    memory = device.allocate_host(len(content))
    memory.view()[:] = content
    return memory


# ------------------------------------------------------------ poison


@pytest.mark.parametrize("side", ["allocate", "allocate_host"])
def test_fresh_memory_is_poisoned_so_that_reading_it_shows(side: str):
    memory = getattr(SimulatedDevice(), side)(64)
    assert bytes(memory.view()) == POISON * 64
    assert np.isnan(np.frombuffer(memory.view(), "float32")).all()
    assert (np.frombuffer(memory.view(), "int64") == -1).all()


def test_the_host_side_of_a_copy_is_poisoned_until_it_lands():
    device = SimulatedDevice("lazy")
    source, memory, out = host(device, b"data"), device.allocate(4), host(device, b"old!")
    stream = device.stream("copy")
    device.copy(memory, source, stream)
    device.copy(out, memory, stream)
    assert bytes(out.view()) == POISON * 4, "neither the old value nor the new one"
    done(device.record(stream))
    assert bytes(out.view()) == b"data"


def test_a_target_that_something_queued_still_reads_keeps_its_bytes():
    """A staging buffer that goes up and comes back on one stream is right, so it must not be poisoned in between."""
    device = SimulatedDevice("lazy")
    staging, memory, other = host(device, b"up!!"), device.allocate(4), device.allocate(4)
    stream = device.stream("copy")
    device.copy(other, host(device, b"down"), stream)
    device.copy(memory, staging, stream)
    device.copy(staging, other, stream)
    out = device.allocate_host(4)
    device.copy(out, memory, stream)
    done(device.record(stream))
    assert bytes(out.view()) == b"up!!"
    assert bytes(staging.view()) == b"down"


def test_only_the_bytes_that_are_copied_to_are_poisoned():
    device = SimulatedDevice("lazy")
    out = host(device, b"abcdefgh")
    device.copy(out.slice(2, 4), device.allocate(4), device.stream("copy"))
    assert bytes(out.view()) == b"ab" + POISON * 4 + b"gh"


def test_a_copy_of_host_memory_onto_itself_keeps_it():
    device = SimulatedDevice("lazy")
    memory = host(device, b"same")
    device.copy(memory, memory, device.stream("copy"))
    done(device.record(device.stream("copy")))
    assert bytes(memory.view()) == b"same"


def test_device_memory_is_not_poisoned_by_a_copy_to_it():
    """A kernel that is queued before may still read it; what is wrong there shows by stale bytes."""
    device = SimulatedDevice("lazy")
    memory = device.allocate(4)
    memory.view()[:] = b"old!"
    device.copy(memory, host(device, b"new!"), device.stream("copy"))
    assert bytes(memory.view()) == b"old!"


# ------------------------------------------------------------ kernels and queries


def test_a_kernel_that_raises_fails_its_stream_with_that_cause():
    device, cause = SimulatedDevice("lazy"), ZeroDivisionError("bad kernel")

    def fail() -> None:
        raise cause

    device.launch(device.stream("compute"), fail)
    with pytest.raises(DeviceError, match="bad kernel") as caught:
        done(device.record(device.stream("compute")))
    assert caught.value.__cause__ is cause


def test_nothing_runs_on_a_lazy_device_before_somebody_waits_and_then_only_what_is_needed():
    device = SimulatedDevice("lazy")
    ran: list[str] = []
    for name in ("first", "second"):
        device.launch(device.stream(name), partial(ran.append, name))
    fence = device.record(device.stream("second"))
    assert not fence.poll()
    assert not ran
    done(fence)
    assert ran == ["second"]


def test_a_program_that_spins_on_a_query_gets_there_in_the_end():
    device = SimulatedDevice("lazy")
    device.launch(device.stream("compute"), lambda: None)
    fence = device.record(device.stream("compute"))
    answers = [fence.poll() for _ in range(20)]
    assert not any(answers[:10])
    assert answers[-1]


def test_a_policy_of_ones_own_decides():
    class Backwards:
        def __str__(self) -> str:
            return "backwards"

        def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:
            return runnable[-1] if needed else None

    device = SimulatedDevice(Backwards())
    ran: list[str] = []
    for name in ("first", "second"):
        device.launch(device.stream(name), partial(ran.append, name))
    done(device.record(device.stream("first")).join(device.record(device.stream("second"))))
    assert ran == ["second", "first"]


# ------------------------------------------------------------ across devices


@pytest.mark.parametrize("make_other", [lambda: SimulatedDevice("lazy", index=1), HostDevice])
@pytest.mark.parametrize("poll", [False, True])
def test_a_stream_may_wait_for_a_stream_of_another_device(make_other, poll: bool):  # noqa: FBT001 - parametrised
    """Nobody waits for the other device's stream itself, so this one has to ask it to go on."""
    one, other = SimulatedDevice("lazy"), make_other()
    gate = HostTimeline("gate")
    theirs, ours = other.stream("theirs"), one.stream("ours")
    staging = other.allocate_host(4)
    other.wait(theirs, Fence([(gate, gate.next_tick())]))
    other.copy(staging, host(other, b"over"), theirs)
    one.wait(ours, other.record(theirs))
    out = one.allocate_host(4)
    one.copy(out, staging, ours)
    fence = one.record(ours)
    assert not fence.poll(waiting=True)
    gate.reach(1)
    if poll:
        assert any(fence.poll() for _ in range(1000))
    done(fence)
    assert bytes(out.view()) == b"over"


def test_a_stream_that_waits_for_two_others_is_not_taken_in_by_the_one_that_is_done():
    device, gates = SimulatedDevice("lazy"), [HostTimeline("open"), HostTimeline("shut")]
    both = Fence([(gate, gate.next_tick()) for gate in gates])
    gates[0].reach(1)
    device.wait(device.stream("one"), both)
    fence = device.record(device.stream("one"))
    assert not fence.poll(waiting=True)
    gates[1].reach(1)
    done(fence)


def test_the_stream_of_a_twin_is_refused():
    one, twin = SimulatedDevice(), SimulatedDevice()
    with pytest.raises(UsageError, match="not a stream of simulated:0"):
        one.record(twin.stream("copy"))


# ------------------------------------------------------------ opening by name


@pytest.mark.parametrize(
    ("text", "name"),
    [("host", "host"), ("cpu", "host"), ("simulated", "simulated:0"), ("simulated:eager", "simulated:0")],
)
def test_a_device_is_opened_by_its_name(text: str, name: str):
    assert open_device(text).name == name


def test_a_device_object_is_passed_through():
    device = HostDevice()
    assert open_device(device) is device


@pytest.mark.parametrize("text", ["", "gpu", "host:1", "simulated:hasty"])
def test_an_unknown_device_is_refused_with_a_next_step(text: str):
    with pytest.raises(UsageError) as caught:
        open_device(text)
    assert caught.value.hint
