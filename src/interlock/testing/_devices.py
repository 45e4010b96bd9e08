"""What every device must do, as tests.

Example:
    ::

        class TestMyDevice(DeviceConformance):
            @pytest.fixture
            def device(self) -> Device:
                return MyDevice()
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from interlock._core._fence import Fence, HostTimeline
from interlock._core._memory import HostMemory
from interlock._waiting import wait
from interlock.errors import DeviceError, InterlockError, UsageError

if TYPE_CHECKING:
    from interlock._core._fence import Timeline
    from interlock._core._protocols import Device, Memory

_BOUND_S = 30.0
"""No test waits longer; a correct device takes milliseconds."""

_ROUNDS = 12
"""Steps of a pipeline: enough for each buffer to be reused several times."""


class DeviceConformance:
    """Inherit, override `device`, and run pytest.

    The suite reaches a device's own memory through copies only, so it need not be visible to the host.
    """

    @pytest.fixture
    def device(self) -> Device:
        """Return a fresh device."""
        raise UsageError(f"{type(self).__name__} tests no device", hint="override its fixture `device`")

    # ------------------------------------------------------------ memory

    @pytest.mark.parametrize("size_bytes", [1, 3, 64, 4096, (1 << 20) + 1])
    @pytest.mark.parametrize("side", ["allocate", "allocate_host"])
    def test_memory_has_the_size_asked_for_and_is_aligned_for_any_dtype(
        self, device: Device, side: str, size_bytes: int
    ) -> None:
        memory: Memory = getattr(device, side)(size_bytes)
        assert memory.size_bytes == size_bytes
        assert memory.region.size_bytes == size_bytes
        assert memory.address % 64 == 0

    @pytest.mark.parametrize("size_bytes", [0, -1])
    @pytest.mark.parametrize("side", ["allocate", "allocate_host"])
    def test_a_size_that_is_not_positive_is_refused(self, device: Device, side: str, size_bytes: int) -> None:
        with pytest.raises(UsageError):
            getattr(device, side)(size_bytes)

    def test_allocations_share_no_byte_and_no_name(self, device: Device) -> None:
        memories = [device.allocate_host(100) for _ in range(4)] + [device.allocate(100) for _ in range(4)]
        assert len({memory.region.allocation for memory in memories}) == len(memories)
        for side in (memories[:4], memories[4:]):
            starts = sorted(memory.address for memory in side)
            assert all(after - before >= 100 for before, after in itertools.pairwise(starts))

    def test_a_slice_is_the_same_bytes_of_the_same_allocation(self, device: Device) -> None:
        for memory in (device.allocate_host(100), device.allocate(100)):
            part = memory.slice(10, 50).slice(5, 20)
            assert part.address == memory.address + 15
            assert part.region.allocation == memory.region.allocation
            assert (part.region.offset_bytes, part.size_bytes) == (15, 20)

    @pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 101), (100, 1), (101, 0), (5, -1)])
    def test_a_slice_that_is_not_inside_is_refused(self, device: Device, offset: int, size: int) -> None:
        for memory in (device.allocate_host(100), device.allocate(100)):
            with pytest.raises(UsageError):
                memory.slice(offset, size)

    def test_a_slice_keeps_the_whole_alive(self, device: Device) -> None:
        part = _host(device, bytes(range(100))).slice(20, 10)
        assert bytes(part.view()) == bytes(range(20, 30))

    def test_host_memory_is_ordinary_and_writable(self, device: Device) -> None:
        memory = device.allocate_host(5)
        memory.view()[:] = b"abcde"
        memory.slice(1, 2).view()[:] = b"XY"
        assert bytes(memory.view()) == b"aXYde"

    def test_host_visible_says_the_truth(self, device: Device) -> None:
        """If it is set, what the host writes to the device's memory is what the device reads."""
        memory = device.allocate(4)
        if device.host_visible:
            memory.view()[:] = b"host"
            assert _read(device, memory) == b"host"
        else:
            _write(device, memory, b"link")
            assert _read(device, memory) == b"link"

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs shared memory without a name")
    def test_shared_host_memory_is_the_same_bytes_for_who_attaches_it(self, device: Device) -> None:
        sharing: Any = device.allocate_host
        memory = sharing(4096, shared=True)
        there = HostMemory.attach(memory.fd, 4096, device.name)
        there.view()[:4] = b"ring"
        target, stream = device.allocate(4), device.stream("copy")
        device.copy(target, memory.slice(0, 4), stream)
        _wait(device.record(stream))
        assert _read(device, target) == b"ring"

    # ------------------------------------------------------------ streams and copies

    def test_a_stream_is_the_same_one_each_time(self, device: Device) -> None:
        assert device.stream("a") is device.stream("a")
        assert device.stream("a") is not device.stream("b")
        assert device.stream("a").name != device.stream("b").name

    @pytest.mark.parametrize("size", [1, 7, 64, 100])
    @pytest.mark.parametrize("source_offset", [0, 1, 63, 64])
    @pytest.mark.parametrize("target_offset", [0, 3, 64])
    def test_a_copy_moves_exactly_the_bytes_it_names(
        self, device: Device, size: int, source_offset: int, target_offset: int
    ) -> None:
        """To the device, on the device and back, from any offset to any other; the bytes around stay as they were."""
        pattern = bytes(1 + index % 250 for index in range(200))
        near, far, other = device.allocate_host(200), device.allocate(200), device.allocate(200)
        near.view()[:] = pattern
        stream = device.stream("copy")
        zeros = _host(device, bytes(200))
        device.copy(far, zeros, stream)
        device.copy(other, zeros, stream)
        device.copy(far.slice(target_offset, size), near.slice(source_offset, size), stream)
        device.copy(other.slice(source_offset, size), far.slice(target_offset, size), stream)
        _wait(device.record(stream))
        moved = pattern[source_offset : source_offset + size]
        assert _read(device, far) == _framed(moved, target_offset, 200)
        assert _read(device, other) == _framed(moved, source_offset, 200)

    def test_operations_on_a_stream_run_in_order(self, device: Device) -> None:
        stream, memory, out = device.stream("one"), device.allocate(8), device.allocate_host(8 * _ROUNDS)
        texts = [b"round%03d" % number for number in range(_ROUNDS)]
        for number, text in enumerate(texts):
            device.copy(memory, _host(device, text), stream)
            device.copy(out.slice(8 * number, 8), memory, stream)
        _wait(device.record(stream))
        assert bytes(out.view()) == b"".join(texts)

    def test_a_queued_copy_keeps_its_memories(self, device: Device) -> None:
        """The caller drops both; whoever gets such memory next must not be able to change what is copied."""
        gate, stream, memory = _Gate(), device.stream("one"), device.allocate(64)
        device.wait(stream, gate.fence)
        device.copy(memory, _host(device, b"k" * 64), stream)
        device.copy(device.allocate(64), memory, stream)
        gc.collect()
        others = [_host(device, b"x" * 64) for _ in range(8)]
        gate.open()
        _wait(device.record(stream))
        assert _read(device, memory) == b"k" * 64
        assert len({other.address for other in others}) == len(others)

    def test_an_empty_copy_is_fine(self, device: Device) -> None:
        memory = _filled(device, b"kept")
        device.copy(memory.slice(2, 0), device.allocate_host(4).slice(4, 0), device.stream("copy"))
        _wait(device.record(device.stream("copy")))
        assert _read(device, memory) == b"kept"

    @pytest.mark.parametrize("sizes", [(4, 5), (5, 4)])
    def test_a_copy_between_different_sizes_is_refused(self, device: Device, sizes: tuple[int, int]) -> None:
        with pytest.raises(UsageError, match="4"):
            device.copy(device.allocate(sizes[0]), device.allocate_host(sizes[1]), device.stream("copy"))

    def test_a_stream_of_another_device_is_refused_and_nothing_is_touched(self, device: Device) -> None:
        foreign: Any = HostTimeline("foreign")
        target = _host(device, b"kept")
        with pytest.raises(UsageError):
            device.copy(target, device.allocate(4), foreign)
        with pytest.raises(UsageError):
            device.wait(foreign, Fence.EMPTY)
        with pytest.raises(UsageError):
            device.record(foreign)
        assert bytes(target.view()) == b"kept"

    # ------------------------------------------------------------ fences

    def test_the_fence_of_an_idle_stream_is_reached(self, device: Device) -> None:
        _wait(device.record(device.stream("idle")))

    def test_the_host_goes_on_while_a_stream_waits(self, device: Device) -> None:
        gate, stream, out = _Gate(), device.stream("one"), device.allocate_host(4)
        memory = _filled(device, b"gate")
        device.wait(stream, gate.fence)
        device.copy(out, memory, stream)
        fence = device.record(stream)
        assert not any(fence.poll() for _ in range(50))
        gate.open()
        _wait(fence)
        assert bytes(out.view()) == b"gate"

    def test_asking_is_enough_to_get_there(self, device: Device) -> None:
        """A program that only polls makes progress, also through a chain of streams."""
        gate, first, second, out = _Gate(), device.stream("first"), device.stream("second"), device.allocate_host(4)
        memory, source = device.allocate(4), _host(device, b"poll")
        device.wait(first, gate.fence)
        device.copy(memory, source, first)
        device.wait(second, device.record(first))
        device.copy(out, memory, second)
        fence = device.record(second)
        assert not fence.poll()
        gate.open()
        _poll_until_reached(fence)
        assert bytes(out.view()) == b"poll"

    def test_a_fence_is_a_snapshot_that_later_work_does_not_delay(self, device: Device) -> None:
        gate, stream, out = _Gate(), device.stream("one"), device.allocate_host(4)
        device.copy(out, _filled(device, b"snap"), stream)
        early = device.record(stream)
        device.wait(stream, gate.fence)
        late = device.record(stream)
        _wait(early)
        assert bytes(out.view()) == b"snap"
        assert not late.poll()
        gate.open()
        _wait(late)

    def test_a_reached_fence_stays_reached(self, device: Device) -> None:
        fence = device.record(device.stream("one"))
        _wait(fence)
        device.copy(device.allocate(4), device.allocate_host(4), device.stream("one"))
        assert fence.poll()
        assert fence.failure() is None

    def test_joined_fences_wait_for_every_stream(self, device: Device) -> None:
        gates = [_Gate(), _Gate()]
        streams = [device.stream("first"), device.stream("second")]
        outs = [device.allocate_host(4), device.allocate_host(4)]
        for stream, gate, out in zip(streams, gates, outs, strict=True):
            memory = _filled(device, b"join")
            device.wait(stream, gate.fence)
            device.copy(out, memory, stream)
        both = device.record(streams[0]).join(device.record(streams[1]))
        gates[1].open()
        _wait(device.record(streams[1]))
        assert not both.poll()
        gates[0].open()
        _wait(both)
        assert [bytes(out.view()) for out in outs] == [b"join", b"join"]

    # ------------------------------------------------------------ order between streams

    def test_wait_orders_a_read_behind_the_other_streams_write(self, device: Device) -> None:
        gate, writer, reader = _Gate(), device.stream("writer"), device.stream("reader")
        memory, out = _filled(device, b"old!"), device.allocate_host(4)
        source = _host(device, b"new!")
        device.wait(writer, gate.fence)
        device.copy(memory, source, writer)
        device.wait(reader, device.record(writer))
        device.copy(out, memory, reader)
        fence = device.record(reader)
        assert not fence.poll()
        gate.open()
        _wait(fence)
        assert bytes(out.view()) == b"new!"

    def test_wait_orders_an_overwrite_behind_the_other_streams_read(self, device: Device) -> None:
        gate, writer, reader = _Gate(), device.stream("writer"), device.stream("reader")
        memory, out = _filled(device, b"old!"), device.allocate_host(4)
        source = _host(device, b"new!")
        device.wait(reader, gate.fence)
        device.copy(out, memory, reader)
        device.wait(writer, device.record(reader))
        device.copy(memory, source, writer)
        fence = device.record(writer)
        assert not fence.poll()
        gate.open()
        _wait(fence)
        assert bytes(out.view()) == b"old!"
        assert _read(device, memory) == b"new!"

    def test_waiting_for_the_empty_fence_orders_nothing(self, device: Device) -> None:
        stream = device.stream("one")
        device.wait(stream, Fence.EMPTY)
        _wait(device.record(stream))

    def test_a_double_buffered_pipeline_needs_no_host_wait_in_between(self, device: Device) -> None:
        """Two buffers between two streams; each write waits for the read of two rounds before."""
        into, back = device.stream("into"), device.stream("back")
        buffers = [device.allocate(8), device.allocate(8)]
        texts = [b"batch%03d" % number for number in range(_ROUNDS)]
        sources, outs = [_host(device, text) for text in texts], [device.allocate_host(8) for _ in texts]
        read = [Fence.EMPTY, Fence.EMPTY]
        for number, (source, out) in enumerate(zip(sources, outs, strict=True)):
            turn = number % 2
            device.wait(into, read[turn])
            device.copy(buffers[turn], source, into)
            device.wait(back, device.record(into))
            device.copy(out, buffers[turn], back)
            read[turn] = device.record(back)
        _wait(read[0].join(read[1]))
        assert [bytes(out.view()) for out in outs] == texts

    def test_staging_is_reused_behind_the_fence_of_two_rounds_before(self, device: Device) -> None:
        """The host rewrites one of two staging buffers when the copy that read it two rounds before has landed."""
        into, back = device.stream("into"), device.stream("back")
        staging, buffer = [device.allocate_host(8), device.allocate_host(8)], device.allocate(8)
        outs = [device.allocate_host(8) for _ in range(_ROUNDS)]
        landed, read = [Fence.EMPTY, Fence.EMPTY], Fence.EMPTY
        for number, out in enumerate(outs):
            turn = number % 2
            _wait(landed[turn])
            staging[turn].view()[:] = b"stage%03d" % number
            device.wait(into, read)
            device.copy(buffer, staging[turn], into)
            landed[turn] = device.record(into)
            device.wait(back, landed[turn])
            device.copy(out, buffer, back)
            read = device.record(back)
        _wait(read)
        assert [bytes(out.view()) for out in outs] == [b"stage%03d" % number for number in range(_ROUNDS)]

    # ------------------------------------------------------------ failure

    def test_failed_work_fails_every_later_fence_with_its_cause(self, device: Device) -> None:
        stream, cause = device.stream("one"), OSError("the disk burnt")
        before = device.record(stream)
        _wait(before)
        device.wait(stream, Fence.failed(cause))
        device.copy(device.allocate(4), device.allocate_host(4), stream)
        for _ in range(2):
            with pytest.raises(DeviceError, match="the disk burnt") as caught:
                _wait(device.record(stream))
            assert caught.value.__cause__ is cause
        assert before.failure() is None

    def test_a_failure_reaches_those_who_wait_on_another_stream_and_nobody_else(self, device: Device) -> None:
        broken, behind, apart = device.stream("broken"), device.stream("behind"), device.stream("apart")
        cause = OSError("the link broke")
        device.wait(broken, Fence.failed(cause))
        device.wait(behind, device.record(broken))
        with pytest.raises(DeviceError, match="the link broke"):
            _wait(device.record(behind))
        out = device.allocate_host(4)
        device.copy(out, _filled(device, b"fine"), apart)
        _wait(device.record(apart))
        assert bytes(out.view()) == b"fine"

    def test_what_a_failed_stream_still_had_to_do_is_never_done(self, device: Device) -> None:
        gate, stream, memory = _Gate(), device.stream("one"), _filled(device, b"kept")
        source = _host(device, b"lost")
        device.wait(stream, gate.fence)
        device.copy(memory, source, stream)
        fence = device.record(stream)
        gate.fail(OSError("no gate"))
        with pytest.raises(InterlockError, match="no gate"):
            _wait(fence)
        assert _read(device, memory) == b"kept"


class _Gate:
    """Holds a stream until the test says so."""

    def __init__(self) -> None:
        self._timeline = HostTimeline("gate")
        self._tick = self._timeline.next_tick()
        self.fence = Fence([(self._timeline, self._tick)])

    def open(self) -> None:
        """Let the stream go on."""
        self._timeline.reach(self._tick)

    def fail(self, cause: BaseException) -> None:
        """Let it fail."""
        self._timeline.fail(cause)


def _wait(fence: Fence) -> None:
    wait(fence, timeout_s=_BOUND_S, what="the work of a conformance test")


def _poll_until_reached(fence: Fence) -> None:
    deadline = time.monotonic() + _BOUND_S
    while not fence.poll():
        assert time.monotonic() < deadline, f"polling {fence} never makes progress"


def _host(device: Device, content: bytes) -> Memory:
    """Return staging memory that holds `content`."""
    memory = device.allocate_host(len(content))
    memory.view()[:] = content
    return memory


def _filled(device: Device, content: bytes) -> Memory:
    """Return device memory that holds `content`."""
    memory = device.allocate(len(content))
    _write(device, memory, content)
    return memory


def _write(device: Device, memory: Memory, content: bytes) -> None:
    stream: Timeline = device.stream("conformance")
    source = _host(device, content)
    device.copy(memory, source, stream)
    _wait(device.record(stream))


def _read(device: Device, memory: Memory) -> bytes:
    stream: Timeline = device.stream("conformance")
    out = device.allocate_host(memory.size_bytes)
    device.copy(out, memory, stream)
    _wait(device.record(stream))
    return bytes(out.view())


def _framed(content: bytes, offset: int, size: int) -> bytes:
    return bytes(offset) + content + bytes(size - offset - len(content))
