"""What a CUDA device asks of its driver, on one made of Python; what a real one shows too is in tests/gpu."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interlock._core._events import observe
from interlock._core._handover import StreamDevice
from interlock._core._spans import Marks, listen
from interlock.devices import _cuda, _cuda_memory
from interlock.devices._cuda import CudaDevice
from interlock.errors import DeviceError, UsageError
from interlock.lowlevel import Device, Fence, HostDevice, HostTimeline, Memory, SimulatedDevice, open_device, wait
from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.lowlevel import HostMemory

LOST = "CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.fixture
def driver(fake_driver: Any) -> Any:
    return fake_driver.FakeDriver(devices=2)


@pytest.fixture
def device(driver: Any) -> CudaDevice:
    return CudaDevice(driver=driver)


class Owner:
    """Something that holds memory."""


def host(device: CudaDevice, content: bytes) -> Memory:
    memory = device.allocate_host(len(content))
    memory.view()[:] = content
    return memory


def done(fence: Fence) -> None:
    wait(fence, timeout_s=10, what="the program")


def unreached() -> tuple[HostTimeline, Fence]:
    timeline = HostTimeline("host work")
    return timeline, Fence([(timeline, timeline.next_tick())])


# ------------------------------------------------------------ streams and fences


def test_a_fence_of_a_cuda_stream_is_waited_for_on_the_device_and_nothing_is_held_back(driver, device: CudaDevice):
    first, second = device.stream("first"), device.stream("second")
    device.copy(device.allocate(4), host(device, b"data"), first)
    fence = device.record(first)
    before = driver.waits
    copies = driver.calls.count("cuMemcpyAsync")
    device.wait(second, fence)
    device.copy(device.allocate(4), host(device, b"data"), second)
    assert driver.waits > before
    assert driver.calls.count("cuMemcpyAsync") == copies + 1, "the copy is in the driver's hands"
    assert not fence.poll()


def test_a_fence_of_another_cuda_device_is_waited_for_on_the_device_too(driver):
    one, other = CudaDevice(0, driver=driver), CudaDevice(1, driver=driver)
    there, here = other.allocate(4), one.allocate(4)
    out = one.allocate_host(4)
    other.copy(there, host(other, b"over"), other.stream("theirs"))
    one.wait(one.stream("ours"), other.record(other.stream("theirs")))
    one.copy(here, there, one.stream("ours"))
    one.copy(out, here, one.stream("ours"))
    assert "cuMemcpyPeerAsync" in driver.calls
    done(one.record(one.stream("ours")))
    assert bytes(out.view()) == b"over"


def test_what_waits_for_the_host_is_held_back_and_goes_on_when_somebody_asks(driver, device: CudaDevice):
    timeline, fence = unreached()
    stream, out = device.stream("one"), device.allocate_host(4)
    memory = device.allocate(4)
    device.copy(memory, host(device, b"held"), stream)
    device.wait(stream, fence)
    copies = driver.calls.count("cuMemcpyAsync")
    device.copy(out, memory, stream)
    after = device.record(stream)
    assert not after.poll()
    assert driver.calls.count("cuMemcpyAsync") == copies
    timeline.reach(1)
    done(after)
    assert bytes(out.view()) == b"held"


def test_a_later_wait_does_not_delay_what_was_held_back_before_it(device: CudaDevice):
    timeline, fence = unreached()
    stream, other = device.stream("one"), device.stream("other")
    device.wait(stream, fence)
    early = device.record(stream)
    with gate(other, device=device):
        device.wait(stream, device.record(other))
        late = device.record(stream)
        timeline.reach(1)
        done(early)
        assert not any(late.poll() for _ in range(50))
    done(late)


def test_what_was_in_the_stream_before_a_failure_still_gets_there(device: CudaDevice):
    stream, cause = device.stream("one"), OSError("the disk burnt")
    with gate(stream, device=device):
        before = device.record(stream)
        device.wait(stream, Fence.failed(cause))
        after = device.record(stream)
        assert not before.poll()
        assert after.failure() is cause
    done(before)
    assert before.failure() is None


def test_a_fence_of_a_stream_that_is_held_back_holds_back_who_waits_for_it(device: CudaDevice):
    """The event of such a fence is in no stream yet, and a driver takes that for no need to wait."""
    timeline, fence = unreached()
    first, second, out = device.stream("first"), device.stream("second"), host(device, b"old!")
    memory = device.allocate(4)
    device.wait(first, fence)
    device.copy(memory, host(device, b"new!"), first)
    device.wait(second, device.record(first))
    device.copy(out, memory, second)
    landed = device.record(second)
    assert not any(landed.poll() for _ in range(50))
    timeline.reach(1)
    done(landed)
    assert bytes(out.view()) == b"new!"


def test_streams_that_wait_for_each_other_in_turns_get_there(device: CudaDevice):
    timeline, fence = unreached()
    streams = [device.stream("ping"), device.stream("pong")]
    device.wait(streams[0], fence)
    for turn in range(40):
        device.wait(streams[(turn + 1) % 2], device.record(streams[turn % 2]))
    last = device.record(streams[0])
    assert not last.poll()
    timeline.reach(1)
    done(last)


def test_a_host_device_may_be_waited_for(device: CudaDevice):
    other, (timeline, fence) = HostDevice(), unreached()
    other.wait(other.stream("theirs"), fence)
    device.wait(device.stream("ours"), other.record(other.stream("theirs")))
    after = device.record(device.stream("ours"))
    assert not after.poll(waiting=True)
    timeline.reach(1)
    done(after)


def test_events_are_used_again(driver, device: CudaDevice):
    stream = device.stream("one")
    done(device.record(stream))
    events = driver.calls.count("cuEventCreate")
    for _ in range(500):
        done(device.record(stream))
    assert driver.calls.count("cuEventCreate") == events


def test_a_fence_that_nobody_asks_for_costs_no_event_for_ever(driver, device: CudaDevice):
    stream = device.stream("one")
    for _ in range(2000):
        device.record(stream)
        driver.step()
    assert driver.calls.count("cuEventCreate") < 100


def test_streams_of_several_threads_keep_their_order(device: CudaDevice):
    """Four threads copy on one stream; each sees its own bytes behind its own fence."""
    stream, wrong = device.stream("shared"), []

    def work(letter: bytes) -> None:
        memory, out = device.allocate(64), device.allocate_host(64)
        for number in range(50):
            content = (letter + str(number).encode()).ljust(64)
            device.copy(memory, host(device, content), stream)
            device.copy(out, memory, stream)
            done(device.record(stream))
            if bytes(out.view()) != content:
                wrong.append((letter, number))

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("seed", range(25))
def test_programs_that_order_their_accesses_see_what_they_would_one_after_the_other(fake_driver, seed: int):
    """Random copies on streams of two devices, each behind the fences of what it depends on; some held by the host."""
    driver = fake_driver.FakeDriver(devices=2, seed=seed)
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    devices = [CudaDevice(0, driver=driver), CudaDevice(1, driver=driver)]
    memories: list[Memory] = [device.allocate(1) for device in devices for _ in range(2)]
    memories += [host(devices[0], bytes([number])) for number in range(4)]
    streams = [(device, device.stream(name)) for device in devices for name in ("a", "b", "c")]
    values: list[int | None] = [None] * 4 + list(range(4))
    written, touched = [Fence.EMPTY] * 8, [Fence.EMPTY] * 8
    gates: list[HostTimeline] = []
    for _ in range(120):
        device, stream = chance.choice(streams)
        target, source = chance.sample(range(8), 2)
        if chance.random() < 0.1:
            timeline, fence = unreached()
            gates.append(timeline)
            device.wait(stream, fence)
        if gates and chance.random() < 0.2:
            gates.pop(chance.randrange(len(gates))).reach(1)
        device.wait(stream, written[source].join(touched[target]))
        device.copy(memories[target], memories[source], stream)
        fence = device.record(stream)
        written[target] = fence
        touched[target] = touched[target].join(fence)
        touched[source] = touched[source].join(fence)
        values[target] = values[source]
    for timeline in gates:
        timeline.reach(1)
    done(Fence.EMPTY.join(*touched))
    for memory, value in zip(memories, values, strict=True):
        out = devices[0].allocate_host(1)
        devices[0].copy(out, memory, devices[0].stream("read"))
        done(devices[0].record(devices[0].stream("read")))
        assert value is None or out.view()[0] == value


# ------------------------------------------------------------ streams of others


def test_it_is_what_frameworks_and_traces_ask_for(device: CudaDevice):
    assert isinstance(device, StreamDevice)
    assert isinstance(device, Marks)


def test_an_adopted_stream_is_the_same_one_each_time_and_keeps_its_number(device: CudaDevice):
    assert device.adopt(0x77) is device.adopt(0x77)
    assert device.handle(device.adopt(0x77)) == 0x77
    assert device.adopt(0) is device.adopt(1), "two names of the legacy default stream"
    assert device.adopt(0x77).name != device.adopt(0x78).name


@pytest.mark.parametrize("handle", [0, 1, 2, 0x77])
def test_an_adopted_stream_works_as_any_other(device: CudaDevice, handle: int):
    stream, out = device.adopt(handle), device.allocate_host(4)
    memory = device.allocate(4)
    device.copy(memory, host(device, b"ours"), device.stream("own"))
    device.wait(stream, device.record(device.stream("own")))
    device.copy(out, memory, stream)
    done(device.record(stream))
    assert bytes(out.view()) == b"ours"


def test_an_adopted_stream_cannot_wait_for_what_only_the_host_sees(device: CudaDevice):
    """Its owner queues there without asking us, and would not be held back."""
    timeline, fence = unreached()
    held = device.stream("held")
    device.wait(held, fence)
    for impossible in (fence, device.record(held)):
        with pytest.raises(UsageError, match="on the host first"):
            device.wait(device.adopt(0x77), impossible)
    timeline.reach(1)
    device.wait(device.adopt(0x77), fence)
    done(device.record(device.adopt(0x77)))


def test_a_failed_fence_is_an_error_on_an_adopted_stream_which_then_goes_on(device: CudaDevice):
    cause = OSError("the disk burnt")
    with pytest.raises(DeviceError, match="the disk burnt") as caught:
        device.wait(device.adopt(0x77), Fence.failed(cause))
    assert caught.value.__cause__ is cause
    done(device.record(device.adopt(0x77)))


def test_the_default_stream_of_a_thread_is_no_other_threads(device: CudaDevice):
    mine = device.adopt(2)
    errors: list[BaseException] = []

    def use() -> None:
        assert device.adopt(2) is not mine
        try:
            device.record(mine)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])


# ------------------------------------------------------------ memory


def test_memory_that_nothing_refers_to_goes_back_without_a_wait(driver, device: CudaDevice):
    memory = device.allocate(1000)
    part = memory.slice(0, 10)
    del memory
    device.record(device.stream("one"))
    assert 1000 in driver.allocated.values(), "a slice keeps the whole"
    del part
    done(device.record(device.stream("one")))
    while driver.step():
        pass
    assert 1000 not in driver.allocated.values()
    assert device.host_syncs == 0


def test_a_queued_copy_keeps_its_memory(driver, device: CudaDevice):
    """Both sides are dropped while the copy is pending; the driver would lose the context if they went."""
    stream = device.stream("one")
    driver.paused = True
    device.copy(device.allocate(100), host(device, bytes(100)), stream)
    fence = device.record(stream)
    gc.collect()
    device.collect()
    driver.paused = False
    done(fence)


def test_an_owner_is_let_go_after_its_copy_even_if_nobody_asks_for_a_fence(driver, device: CudaDevice):
    stream, target = device.stream("one"), device.allocate_host(8)
    owners = []
    for _ in range(300):
        memory, owner = device.allocate(8), Owner()
        owners.append(weakref.ref(owner))
        device.copy(target, device.wrap(memory.address, 8, (owner, memory)), stream)
        while driver.step():
            pass
        del memory, owner
    device.collect()
    alive = sum(reference() is not None for reference in owners)
    assert alive <= 64


def test_a_copy_keeps_its_memory_though_an_interrupt_comes_right_behind_it(driver, device: CudaDevice, monkeypatch):
    """As Ctrl-C does in the main thread, where a feed without workers copies."""
    copy, stream = driver.cuMemcpyAsync, device.stream("one")

    def interrupted(*arguments: Any) -> Any:
        copy(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "cuMemcpyAsync", interrupted)
    driver.paused = True
    with pytest.raises(KeyboardInterrupt):
        device.copy(device.allocate(100), host(device, bytes(100)), stream)
    device.collect()
    driver.paused = False
    done(device.record(stream))


def test_a_stream_of_others_may_be_destroyed_once_nothing_more_is_asked_of_it(driver, device: CudaDevice):
    """Its copy was never recorded by whoever queued it; neither the owner's end nor the exit may touch the stream."""
    theirs, owner = device.adopt(0x77), Owner()
    memory, alive = device.allocate(8), weakref.ref(owner)
    device.copy(device.wrap(memory.address, 8, (memory, owner)), host(device, bytes(8)), theirs)
    del owner
    while driver.step():
        pass
    driver.destroyed.add(0x77)
    device.collect()
    assert alive() is None
    assert not device.adopt(0x77).busy()


@pytest.mark.parametrize(("handle", "more"), [(0, []), (0x77, ["cuStreamIsCapturing"])])
def test_an_order_between_streams_takes_few_calls_of_the_driver(driver, device: CudaDevice, handle: int, more):
    """Each gives the interpreter's lock away, and where threads copy it is a while until it comes back."""
    driver.cuCtxPushCurrent(0xC0)  # as on the thread of a framework that works on the device
    theirs, ours = device.adopt(handle), device.stream("ours")
    done(device.record(theirs))
    before = len(driver.calls)
    device.wait(ours, device.record(theirs))
    assert driver.calls[before:] == [*more, "cuCtxGetCurrent", "cuEventRecord", "cuCtxGetCurrent", "cuStreamWaitEvent"]


def test_idle_pinned_memory_is_bounded(driver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_cuda_memory, "IDLE_PINNED_BYTES", 3 * 4096)
    memories = [device.allocate_host(4096) for _ in range(8)]
    assert len(driver.registered) == 8
    addresses = [memory.address for memory in memories]
    while memories:
        del memories[0]
    device.collect()
    assert sorted(driver.registered) == sorted(addresses[-3:]), "the oldest go first"


def test_pinned_memory_that_cannot_be_had_is_a_memory_error_with_a_next_step(fake_driver):
    device = CudaDevice(driver=fake_driver.FakeDriver(pinnable_bytes=1 << 20))
    with pytest.raises(MemoryError, match=r"cannot pin 2,097,152 bytes.*ulimit"):
        device.allocate_host(2 << 20)
    assert device.allocate_host(1000).size_bytes == 1000


def test_idle_pinned_memory_makes_room_for_another_size(fake_driver):
    device = CudaDevice(driver=fake_driver.FakeDriver(pinnable_bytes=1 << 20))
    device.allocate_host(700_000)
    assert device.allocate_host(800_000).size_bytes == 800_000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_the_child_of_a_fork_has_no_pinned_memory_but_what_is_shared(device: CudaDevice):
    """After a write on either side the two would have different pages, and the device might have the child's."""
    own, shared = device.allocate_host(1 << 16), device.allocate_host(1 << 16, shared=True)
    assert "dc" in flags_of(own)
    assert "dc" not in flags_of(shared)


def flags_of(memory: HostMemory) -> list[str]:
    """Return the system's flags for the pages of memory; `dc` says that a fork does not copy them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.partition(" ")[0]
        if "-" in head and not head.endswith(":"):
            start, end = (int(part, 16) for part in head.split("-"))
            inside = start <= memory.address < end
        elif inside and head == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(memory)


def test_shared_memory_is_used_again_for_shared_memory_only(device: CudaDevice):
    shared = device.allocate_host(4096, shared=True).address
    plain = device.allocate_host(4096)
    assert plain.address != shared
    assert device.allocate_host(4096, shared=True).address == shared


def test_memory_is_not_used_again_for_another_size(device: CudaDevice):
    """A slot that is larger than asked for would break the budgets of those who count bytes."""
    device.allocate_host(8192)
    assert device.allocate_host(4096).size_bytes == 4096


def test_a_copy_of_memory_that_is_not_pinned_is_counted(device: CudaDevice):
    plain = HostDevice().allocate(8)
    device.copy(device.allocate(8), plain, device.stream("one"))
    assert device.host_syncs == 1


# ------------------------------------------------------------ contexts, graphs, failures


def test_the_threads_current_context_is_left_as_it_was(driver, device: CudaDevice):
    driver.cuCtxPushCurrent(0xC1)
    device.copy(device.allocate(4), host(device, b"data"), device.adopt(0))
    done(device.record(device.stream("new")))
    assert driver.cuCtxGetCurrent()[1] == 0xC1
    assert driver.cuCtxPopCurrent()[1] == 0xC1
    assert driver.cuCtxGetCurrent()[1] == 0


def test_another_devices_context_may_be_current(driver, device: CudaDevice):
    """XLA leaves the context of the device that it used last current; the driver refuses our copies under it."""
    driver.cuCtxPushCurrent(0xC1)
    stream, memory, out = device.stream("one"), device.allocate(4), device.allocate_host(4)
    device.copy(memory, host(device, b"mine"), stream)
    device.copy(out, memory, stream)
    done(device.record(stream))
    assert bytes(out.view()) == b"mine"
    assert driver.cuCtxPopCurrent()[1] == 0xC1


def test_a_graph_that_another_thread_captures_is_not_upset(driver, device: CudaDevice):
    driver.capturing = True
    device.copy(device.allocate(4), host(device, b"data"), device.stream("one"))
    done(device.record(device.stream("one")))
    assert driver.capture_mode() == driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


def test_what_is_fresh_is_used_behind_its_allocation(driver, device: CudaDevice):
    """The pool may give out memory before the stream that asked for it has come to that point."""
    driver.paused = True
    memory = device.allocate(4)
    before = driver.waits
    device.copy(memory, host(device, b"data"), device.stream("one"))
    assert driver.waits == before + 1
    driver.paused = False
    done(device.record(device.stream("one")))
    device.copy(memory, host(device, b"data"), device.stream("one"))
    assert driver.waits == before + 1, "that is over once it is reached"


def test_it_tells_checkers_what_the_simulated_device_tells_them(device: CudaDevice):
    def told(one: Device) -> list[str]:
        events: list[Any] = []
        remove = observe(events.append)
        memory, staging, stream = one.allocate(4), one.allocate_host(4), one.stream("one")
        one.copy(memory, staging, stream)
        fence = one.record(stream)
        one.wait(one.stream("two"), fence)
        done(fence)
        remove()
        return [type(event).__name__ + getattr(event, "mode", "") for event in events]

    assert told(device) == told(SimulatedDevice("lazy"))


def test_work_in_a_graph_that_is_captured_is_refused(driver, device: CudaDevice):
    stream = device.adopt(0x77)
    driver.captured.add(0x77)
    for use in (
        lambda: device.record(stream),
        lambda: device.wait(stream, Fence.EMPTY),
        lambda: device.copy(device.allocate(4), host(device, b"data"), stream),
    ):
        with pytest.raises(UsageError, match="outside the capture"):
            use()
    driver.captured.clear()
    done(device.record(stream))


def test_a_refusal_names_the_call_and_the_reason_and_the_stream_goes_on(driver, device: CudaDevice):
    memory, source = device.allocate(4), host(device, b"data")
    driver.fail("cuMemcpyAsync", driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(
        DeviceError, match=r"cuda:0 refused cuMemcpyAsync: CUDA_ERROR_INVALID_VALUE, invalid value; has memory"
    ):
        device.copy(memory, source, device.stream("one"))
    device.copy(memory, source, device.stream("one"))
    done(device.record(device.stream("one")))


def test_a_refusal_of_what_was_held_back_fails_the_stream(driver, device: CudaDevice):
    timeline, fence = unreached()
    stream = device.stream("one")
    memory, source = device.allocate(4), host(device, b"data")
    device.wait(stream, fence)
    device.copy(memory, source, stream)
    after = device.record(stream)
    driver.fail("cuMemcpyAsync", driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    timeline.reach(1)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        done(after)


def test_a_lost_context_fails_every_fence_with_its_cause_and_refuses_everything(driver, device: CudaDevice):
    timeline, gate = unreached()
    streams = [device.stream("copying"), device.stream("held"), device.adopt(0x77)]
    device.wait(streams[1], gate)
    memory, source = device.allocate(4), host(device, b"data")
    early = device.record(streams[0])
    done(early)
    for stream in streams:
        device.copy(memory, source, stream)
    fences = [device.record(stream) for stream in streams]
    driver.lose()
    for fence in fences:
        with pytest.raises(DeviceError, match=LOST):
            done(fence)
    assert early.failure() is None
    for use in (
        lambda: device.copy(memory, source, streams[0]),
        lambda: device.record(streams[2]),
        lambda: device.wait(streams[1], Fence.EMPTY),
        lambda: device.allocate(4),
        lambda: device.allocate_host(4),
        lambda: device.stream("another"),
    ):
        with pytest.raises(DeviceError, match=f"cuda:0 is lost.*{LOST}"):
            use()
    timeline.reach(1)
    device.collect()


def test_who_waits_for_a_stream_of_a_lost_device_fails_with_its_cause(driver, fake_driver):
    lost = CudaDevice(driver=driver)
    alive = CudaDevice(driver=fake_driver.FakeDriver())
    timeline, gate = unreached()
    lost.wait(lost.stream("one"), gate)
    alive.wait(alive.stream("behind"), lost.record(lost.stream("one")))
    fence = alive.record(alive.stream("behind"))
    lost.record(lost.stream("other"))
    driver.lose()
    lost.collect()
    with pytest.raises(DeviceError, match=LOST):
        done(fence)
    assert not timeline.reached(1)


def test_what_is_held_back_for_the_host_does_not_keep_a_process_from_ending(driver, device: CudaDevice):
    _, fence = unreached()
    stream = device.stream("one")
    driver.paused = True
    device.copy(device.allocate(4), host(device, b"data"), stream)
    assert stream.busy()
    driver.paused = False
    while stream.busy():
        driver.step()
    device.wait(stream, fence)
    device.copy(device.allocate(4), host(device, b"data"), stream)
    assert not stream.busy()


# ------------------------------------------------------------ times


@pytest.fixture
def spans() -> Iterator[list[Any]]:
    found: list[Any] = []
    remove = listen(found.append)
    yield found
    remove()


def test_copies_are_reported_once_they_are_done(spans: list[Any], device: CudaDevice):
    memory, out = device.allocate(4), device.allocate_host(4)
    device.copy(memory, host(device, b"data"), device.stream("feed"))
    device.copy(out, memory, device.stream("feed"))
    assert not spans
    done(device.unreported())
    device.report_due()
    assert not device.unreported().points
    assert [(span.track, span.name, span.size_bytes) for span in spans] == [
        ("cuda:0/feed", "copy in", 4),
        ("cuda:0/feed", "copy out", 4),
    ]
    assert all(span.start_ns <= span.end_ns for span in spans)


def test_times_are_right_though_the_host_was_away_while_the_clocks_were_compared(
    spans: list[Any], driver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
):
    """As a thread is that has to make room for others: between two looks at the event by which clocks are compared."""
    query, absences = driver.cuEventQuery, iter([0.04, 0.02])

    def late(event: Any) -> Any:
        answer = query(event)
        time.sleep(next(absences, 0))
        return answer

    memory, source, stream = device.allocate(8), host(device, bytes(8)), device.stream("one")
    done(device.record(stream))
    monkeypatch.setattr(driver, "cuEventQuery", late)
    device.mark(stream)
    start_ns = time.perf_counter_ns()
    device.copy(memory, source, stream)
    done(device.unreported())
    device.report_due()
    (span,) = spans
    assert next(absences, None) is None
    assert start_ns - 3_000_000 <= span.start_ns <= span.end_ns <= time.perf_counter_ns() + 3_000_000


def test_a_range_of_an_adopted_stream_is_reported(spans: list[Any], device: CudaDevice):
    stream = device.adopt(0x77)
    start = device.mark(stream)
    end = device.mark(stream)
    device.report_between(start, end, "step", number=3)
    done(device.unreported())
    device.report_due()
    assert [(span.track, span.name, span.number) for span in spans] == [(stream.name, "step", 3)]


def test_a_stream_that_was_marked_may_be_destroyed_before_its_times_are_known(
    spans: list[Any], driver, device: CudaDevice
):
    stream = device.adopt(0x77)
    driver.paused = True
    start = device.mark(stream)
    device.report_between(start, device.mark(stream), "step")
    driver.paused = False
    driver.destroyed.add(0x77)
    done(device.unreported())
    device.report_due()
    assert [span.name for span in spans] == ["step"]


def test_spans_of_a_stream_are_reported_in_its_order(spans: list[Any], device: CudaDevice):
    """The marks may be reached between the question for the first and that for the second."""
    stream = device.adopt(0x77)
    marks = device.mark(stream), device.mark(stream)
    for number in range(4):
        device.report_between(*marks, "step", number=number)
    while device.unreported().points:
        device.report_due()
    assert [span.number for span in spans] == [0, 1, 2, 3]


def test_there_is_no_time_in_a_graph_that_is_captured(spans: list[Any], driver, device: CudaDevice):
    stream = device.adopt(0x77)
    start = device.mark(stream)
    driver.captured.add(0x77)
    assert device.mark(stream) is None
    device.report_between(start, device.mark(stream), "step")
    assert not device.unreported().points
    assert not spans


def test_a_mark_may_end_one_span_and_begin_the_next(spans: list[Any], device: CudaDevice):
    stream = device.adopt(0x77)
    marks = [device.mark(stream) for _ in range(3)]
    device.report_between(marks[0], marks[1], "first")
    done(device.unreported())
    device.report_due()
    device.mark(stream)  # must not be given the event that the second span needs
    device.report_between(marks[1], marks[2], "second")
    done(device.unreported())
    device.report_due()
    assert [span.name for span in spans] == ["first", "second"]
    assert spans[0].end_ns == spans[1].start_ns


def test_times_cost_nothing_while_nobody_listens(driver, device: CudaDevice):
    device.copy(device.allocate(4), host(device, b"data"), device.stream("feed"))
    records = driver.calls.count("cuEventRecord")
    device.copy(device.allocate_host(4), host(device, b"data"), device.stream("feed"))
    assert driver.calls.count("cuEventRecord") == records


# ------------------------------------------------------------ opening


@pytest.fixture
def opened(driver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver that `open_device` finds."""
    monkeypatch.setattr(_cuda, "load_driver", lambda: driver)
    monkeypatch.setattr(_cuda, "_devices", {})
    return driver


def test_a_device_is_opened_once(opened):  # noqa: ARG001 - a fixture for its effect
    assert open_device("cuda:1") is open_device("cuda:1")
    assert open_device("cuda").name == "cuda:0"


def test_cuda_alone_is_the_threads_current_device(opened):
    opened.cuCtxPushCurrent(0xC1)
    assert open_device("cuda").name == "cuda:1"
    opened.cuCtxPopCurrent()


@pytest.mark.parametrize("name", ["cuda:2", "cuda:-1", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_with_what_there_is(opened, name: str):  # noqa: ARG001
    with pytest.raises(UsageError) as caught:
        open_device(name)
    assert caught.value.hint
    if name == "cuda:2":
        assert "cuda:0, cuda:1" in str(caught.value)


def test_a_machine_without_devices_or_driver_says_so(opened, monkeypatch: pytest.MonkeyPatch):
    opened.devices = 0
    with pytest.raises(UsageError, match="the driver shows none"):
        open_device("cuda")

    def no_library(_: int) -> None:
        raise RuntimeError("libcuda.so.1 cannot be found")

    monkeypatch.setattr(opened, "cuInit", no_library)
    with pytest.raises(UsageError, match="no NVIDIA driver"):
        open_device("cuda")


def test_a_child_of_a_process_that_has_started_cuda_is_told(opened):
    opened.fail("cuInit", opened.CUresult.CUDA_ERROR_NOT_INITIALIZED)
    with pytest.raises(DeviceError, match="spawn"):
        open_device("cuda")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: str) -> None:
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(UsageError, match=r"pip install 'interlock\[cuda\]'"):
        open_device("cuda")


def test_a_lost_device_is_not_opened_again(opened):
    device = open_device("cuda:0")
    fence = device.record(device.stream("one"))
    opened.lose()
    with pytest.raises(DeviceError, match=LOST):
        done(fence)
    opened._lost = None
    with pytest.raises(DeviceError, match="is lost"):
        open_device("cuda:0")
