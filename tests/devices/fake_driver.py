# ruff: noqa: N802 - the names are the driver's
"""A CUDA driver made of Python: as much of `cuda.bindings.driver` as a `CudaDevice` uses, for machines without a GPU.

Device memory is host memory; streams are queues of which each query of an event runs one entry, so that everything is
late. It is strict where the real driver is: what needs a current context is refused without one, a copy that runs after
its memory has gone loses the context, and who pins memory while a stream is held is told so, where a real driver waits.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_ALIGNMENT = 512


class CUresult(enum.IntEnum):
    """The codes that matter here."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class CUstream_flags(enum.IntEnum):  # noqa: N801 - the driver's name
    """Flags of a stream."""

    CU_STREAM_DEFAULT = 0
    CU_STREAM_NON_BLOCKING = 1


class CUevent_flags(enum.IntEnum):  # noqa: N801 - the driver's name
    """Flags of an event."""

    CU_EVENT_DEFAULT = 0
    CU_EVENT_DISABLE_TIMING = 2


class CUstreamCaptureMode(enum.IntEnum):
    """What a thread may do while another one captures a graph."""

    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class CUstreamWaitValue_flags(enum.IntEnum):  # noqa: N801 - the driver's name
    """How a value is compared."""

    CU_STREAM_WAIT_VALUE_GEQ = 0


class Event:
    """An event: how often it was recorded, and which of that is done."""

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self.recorded = 0
        self.done = 0
        self.time = 0.0


Code: TypeAlias = CUresult
Mode: TypeAlias = CUstreamCaptureMode
OK = CUresult.CUDA_SUCCESS


class FakeDriver:
    """Stands for the module.

    Args:
        devices: How many there are.
        total_bytes: Memory of each.
        pinnable_bytes: How much host memory may be registered.
        seed: Of the order in which streams get on.

    Attributes:
        registered: Registered host memory: address to size.
        allocated: Device memory: address to size.
        waits: Waits for events that were put into streams.
        calls: Names of the functions called so far, in order.
        paused: While set, no stream moves.
        capturing: Whether some thread captures a graph, which others may upset.
        captured: Streams on which a graph is captured.
        destroyed: Streams that their owner has destroyed.
    """

    CUresult = CUresult
    CUstream_flags = CUstream_flags
    CUevent_flags = CUevent_flags
    CUstreamCaptureMode = CUstreamCaptureMode
    CUstreamWaitValue_flags = CUstreamWaitValue_flags
    CUstream = int
    CU_MEMHOSTREGISTER_PORTABLE = 1

    def __init__(
        self, devices: int = 1, *, total_bytes: int = 1 << 30, pinnable_bytes: int = 1 << 30, seed: int = 0
    ) -> None:
        self.devices = devices
        self.total_bytes = total_bytes
        self.pinnable_bytes = pinnable_bytes
        self.registered: dict[int, int] = {}
        self.allocated: dict[int, int] = {}
        self.waits = 0
        self.calls: list[str] = []
        self.paused = False
        self.capturing = False
        self.captured: set[int] = set()
        self.destroyed: set[int] = set()
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._lost: Code | None = None
        self._buffers: dict[int, Any] = {}
        self._streams: dict[int, deque[Callable[[], bool]]] = {}
        self._homes: dict[int, int] = {}
        self._handles = itertools.count(0x1000, 0x10)
        self._events: dict[int, Event] = {}
        self._current = threading.local()
        self._lock = threading.RLock()
        self._failing: dict[str, Code] = {}
        self._gates: list[Callable[[], bool]] = []

    @property
    def pending(self) -> int:
        """Entries of streams that have not run."""
        return sum(map(len, self._streams.values()))

    def fail(self, name: str, code: Code) -> None:
        """Let the next call of a function fail."""
        self._failing[name] = code

    def lose(self, code: Code = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS) -> None:
        """Let every call from now on fail, as after a kernel that went astray."""
        self._lost = code

    # ------------------------------------------------------------ contexts and devices

    def _stack(self) -> list[int]:
        stack: list[int] = self._current.__dict__.setdefault("stack", [])
        return stack

    def _enter(self, name: str, *, needs_context: bool = False) -> Code:
        self.calls.append(name)
        risky = name in {"cuEventQuery", "cuMemHostRegister", "cuMemAllocAsync"}
        if self.capturing and risky and self.capture_mode() == CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        if self._lost is not None:
            return self._lost
        if needs_context and not self._stack():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        return self._failing.pop(name, OK)

    def cuInit(self, flags: int) -> tuple[Code]:  # noqa: ARG002
        return (self._enter("cuInit") or (OK if self.devices else CUresult.CUDA_ERROR_NO_DEVICE),)

    def cuDeviceGetCount(self) -> tuple[Code, int]:
        return OK, self.devices

    def cuDeviceGet(self, index: int) -> tuple[Code, int]:
        return self._enter("cuDeviceGet"), index

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Code, int]:
        return self._enter("cuDevicePrimaryCtxRetain"), 0xC0 + device

    def cuCtxPushCurrent(self, context: int) -> tuple[Code]:
        code = self._enter("cuCtxPushCurrent")
        if code == OK:
            self._stack().append(context)
        return (code,)

    def cuCtxPopCurrent(self) -> tuple[Code, int]:
        self.calls.append("cuCtxPopCurrent")
        return OK, self._stack().pop()

    def cuCtxGetCurrent(self) -> tuple[Code, int]:
        self.calls.append("cuCtxGetCurrent")
        return OK, self._stack()[-1] if self._stack() else 0

    def cuCtxGetDevice(self) -> tuple[Code, int]:
        return OK, self._stack()[-1] - 0xC0

    def cuCtxGetStreamPriorityRange(self) -> tuple[Code, int, int]:
        return self._enter("cuCtxGetStreamPriorityRange", needs_context=True), 0, -5

    def cuThreadExchangeStreamCaptureMode(self, mode: Mode) -> tuple[Code, Mode]:
        self.calls.append("cuThreadExchangeStreamCaptureMode")
        before = self.capture_mode()
        self._current.mode = mode
        return OK, before

    def capture_mode(self) -> Mode:
        """Return the calling thread's mode."""
        mode: Mode = getattr(self._current, "mode", CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        return mode

    def cuGetErrorName(self, code: Code) -> tuple[Code, bytes]:
        return OK, CUresult(code).name.encode()

    def cuGetErrorString(self, code: Code) -> tuple[Code, bytes]:
        return OK, CUresult(code).name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode()

    # ------------------------------------------------------------ memory

    def cuMemGetInfo(self) -> tuple[Code, int, int]:
        free = self.total_bytes - sum(self.allocated.values())
        return self._enter("cuMemGetInfo", needs_context=True), free, self.total_bytes

    def cuMemAllocAsync(self, size: int, stream: int) -> tuple[Code, int]:  # noqa: ARG002
        code = self._enter("cuMemAllocAsync", needs_context=True)
        with self._lock:
            if code == OK and sum(self.allocated.values()) + size > self.total_bytes:
                code = CUresult.CUDA_ERROR_OUT_OF_MEMORY
            if code != OK:
                return code, 0
            buffer = ctypes.create_string_buffer(size + _ALIGNMENT)
            address = -(-ctypes.addressof(buffer) // _ALIGNMENT) * _ALIGNMENT
            self._buffers[address] = buffer
            self.allocated[address] = size
            return OK, address

    def cuMemFreeAsync(self, address: int, stream: int) -> tuple[Code]:
        code = self._enter("cuMemFreeAsync")

        def free() -> bool:
            del self.allocated[address], self._buffers[address]
            return True

        return (code or self._queue(stream, free),)

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[Code]:
        code = self._enter("cuMemHostRegister", needs_context=True)
        with self._lock:
            held = [is_open for is_open in self._gates if not is_open()]
        assert not held, "a real driver would wait here until the held stream goes on"
        if code == OK and (flags != self.CU_MEMHOSTREGISTER_PORTABLE or address in self.registered):
            code = CUresult.CUDA_ERROR_INVALID_VALUE
        if code == OK and sum(self.registered.values()) + size > self.pinnable_bytes:
            code = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        if code == OK:
            self.registered[address] = size
        return (code,)

    def cuMemHostUnregister(self, address: int) -> tuple[Code]:
        code = self._enter("cuMemHostUnregister", needs_context=True)
        if code == OK and self.registered.pop(address, None) is None:
            code = CUresult.CUDA_ERROR_INVALID_VALUE
        return (code,)

    def _is_there(self, address: int, size: int) -> bool:
        for known in (self.registered, self.allocated):
            if any(start <= address and address + size <= start + length for start, length in list(known.items())):
                return True
        return False

    # ------------------------------------------------------------ streams

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[Code, int]:
        assert (flags, priority) == (CUstream_flags.CU_STREAM_NON_BLOCKING, -5)
        code = self._enter("cuStreamCreateWithPriority", needs_context=True)
        handle = next(self._handles)
        if code == OK:
            self._homes[handle] = self._stack()[-1]
        return code, handle

    def cuStreamIsCapturing(self, stream: int) -> tuple[Code, int]:
        assert stream != 1, "the legacy stream cannot be asked while others are captured"
        assert stream not in self.destroyed, "a real driver may crash"
        self.calls.append("cuStreamIsCapturing")
        return OK, int(stream in self.captured)

    def _queue(self, stream: int, run: Callable[[], bool]) -> Code:
        """Queue what returns whether it could run; it is tried again until it could."""
        assert stream not in self.destroyed, "a real driver may crash"
        if stream <= 2 and not self._stack():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        with self._lock:
            self._streams.setdefault(max(stream, 1), deque()).append(run)
        return OK

    def step(self) -> bool:
        """Run one entry of one stream, if any can run."""
        with self._lock:
            queues = [] if self.paused else [queue for queue in self._streams.values() if queue]
            for queue in self._random.sample(queues, len(queues)):
                if queue[0]():
                    queue.popleft()
                    return True
        return False

    def cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Code]:
        code = self._enter("cuMemcpyAsync")
        if code == OK and self._stack() and self._stack()[-1] != self._homes.get(stream, self._stack()[-1]):
            code = CUresult.CUDA_ERROR_INVALID_VALUE

        def move() -> bool:
            if self._is_there(target, size) and self._is_there(source, size):
                ctypes.memmove(target, source, size)
            else:
                self.lose()
            return True

        return (code or self._queue(stream, move),)

    def cuMemcpyPeerAsync(
        self, target: int, target_context: int, source: int, source_context: int, size: int, stream: int
    ) -> tuple[Code]:
        assert target_context != source_context
        self.calls.append("cuMemcpyPeerAsync")
        return self.cuMemcpyAsync(target, source, size, stream)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Code]:  # noqa: ARG002
        code = self._enter("cuStreamWaitEvent")
        self.waits += 1
        known = self._events[event]
        generation = known.recorded
        return (code or self._queue(stream, lambda: known.done >= generation),)

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[Code]:
        assert flags == CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        code = self._enter("cuStreamWaitValue32", needs_context=True)
        if code == OK and not self._is_there(address, 4):
            code = CUresult.CUDA_ERROR_INVALID_VALUE
        flag = ctypes.c_uint32.from_address(address)

        def is_open() -> bool:
            return flag.value >= value

        def go_on() -> bool:
            if not is_open():
                return False
            self._gates.remove(is_open)
            return True

        with self._lock:
            self._gates.append(is_open)
        return (code or self._queue(stream, go_on),)

    # ------------------------------------------------------------ events

    def cuEventCreate(self, flags: int) -> tuple[Code, int]:
        code = self._enter("cuEventCreate", needs_context=True)
        handle = next(self._handles)
        self._events[handle] = Event(timed=flags == CUevent_flags.CU_EVENT_DEFAULT)
        return code, handle

    def cuEventRecord(self, event: int, stream: int) -> tuple[Code]:
        code = self._enter("cuEventRecord")
        known = self._events[event]
        known.recorded += 1
        generation = known.recorded

        def reach() -> bool:
            known.done, known.time = generation, time.perf_counter()
            return True

        return (code or self._queue(stream, reach),)

    def cuEventQuery(self, event: int) -> tuple[Code]:
        code = self._enter("cuEventQuery")
        if code != OK:
            return (code,)
        known = self._events[event]
        if known.done < known.recorded:
            self.step()
            return (self._lost or CUresult.CUDA_ERROR_NOT_READY,)
        return (OK,)

    def cuEventElapsedTime(self, start: int, end: int) -> tuple[Code, float]:
        first, last = self._events[start], self._events[end]
        assert first.timed
        assert last.timed
        code = self._enter("cuEventElapsedTime")
        if code == OK and (first.done < first.recorded or last.done < last.recorded):
            code = CUresult.CUDA_ERROR_NOT_READY
        return code, (last.time - first.time) * 1e3
