"""As much of CuPy as its adapter uses, on a simulated device; its pool gives freed memory away as CuPy's does."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from interlock.lowlevel import SimulatedDevice, wait

if TYPE_CHECKING:
    from interlock.lowlevel import Fence, HostMemory, Memory, OperationQueue


class Twin:
    """A simulated device that says it is `cuda:0`, and knows streams and memory by number."""

    index = 0
    host_visible = False
    name = "cuda:0"

    def __init__(self, schedule: str) -> None:
        self.device = SimulatedDevice(schedule, name=self.name)
        self.blocks: dict[int, HostMemory] = {}
        self.destroyed: set[int] = set()
        self._streams: dict[int, OperationQueue] = {0: self.device.stream("default")}

    def allocate(self, size_bytes: int) -> HostMemory:
        return self.device.allocate(size_bytes)

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory:
        return self.device.allocate_host(size_bytes, shared=shared)

    def stream(self, name: str) -> OperationQueue:
        return self.device.stream(name)

    def copy(self, target: Memory, source: Memory, stream: Any) -> None:
        self.device.copy(target, source, stream)

    def wait(self, stream: Any, fence: Fence) -> None:
        self.device.wait(stream, fence)

    def record(self, stream: Any) -> Fence:
        assert all(self._streams[handle] is not stream for handle in self.destroyed), "a real driver may crash"
        return self.device.record(stream)

    def adopt(self, handle: int) -> OperationQueue:
        return self._streams[handle]

    def handle(self, stream: Any) -> int:
        return next((handle for handle, one in self._streams.items() if one is stream), None) or self._add(stream)

    def new_stream(self) -> int:
        return self._add(self.device.stream(f"stream-{len(self._streams)}"))

    def _add(self, stream: OperationQueue) -> int:
        handle = 0x7000 + len(self._streams)
        self._streams[handle] = stream
        return handle

    def wrap(self, address: int, size_bytes: int, owner: object) -> HostMemory:
        assert owner is not None
        for start, block in self.blocks.items():
            if start <= address < start + block.size_bytes:
                return block.slice(address - start, size_bytes)
        raise AssertionError(f"no block is at {address:#x}")


class Pooled:
    """A block of the pool: with its last reference it is free for the stream that it was allocated on."""

    def __init__(self, free: list[HostMemory], memory: HostMemory) -> None:
        self.ptr = memory.address
        self.size = memory.size_bytes
        self._free = free
        self._memory = memory

    def __del__(self) -> None:
        self._free.append(self._memory)


class UnownedMemory:
    """Memory of others."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        assert device_id == 0
        self.ptr, self.size, self.owner = ptr, size, owner


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class Device:
    """A device made current, of which there is one."""

    def __init__(self, index: int) -> None:
        assert index == 0
        self.id = index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class State:
    """What one stand-in for CuPy knows: the pool, and each thread's current stream.

    Args:
        twin: Its device.
    """

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.null: Any = None
        self._local = threading.local()
        self._free: dict[tuple[int, int], list[HostMemory]] = {}

    def current(self, device_id: int = 0) -> Any:
        assert device_id == 0
        return self._local.__dict__.get("current", self.null)

    def use(self, stream: Any) -> None:
        self._local.current = stream

    @property
    def stack(self) -> list[Any]:
        stack: list[Any] = self._local.__dict__.setdefault("stack", [self.null])
        return stack

    def alloc(self, size: int) -> MemoryPointer:
        free = self._free.setdefault((self.current().ptr, size), [])
        memory = free.pop() if free else self.twin.allocate(size)
        self.twin.blocks[memory.address] = memory
        return MemoryPointer(Pooled(free, memory), 0)

    def used_bytes(self) -> int:
        free = sum(block.size_bytes for blocks in self._free.values() for block in blocks)
        return sum(block.size_bytes for block in self.twin.blocks.values()) - free


class Stream:
    """A stream; as in CuPy, leaving a block brings back the stream of the block around it."""

    state: State

    def __init__(self, ptr: int | None = None, *, non_blocking: bool = False) -> None:
        del non_blocking
        self.ptr = self.state.twin.new_stream() if ptr is None else ptr
        self.device_id = 0

    def __del__(self) -> None:
        self.state.twin.destroyed.add(self.ptr)

    @classmethod
    def from_external(cls, stream: Any) -> Self:
        return cls(stream.__cuda_stream__()[1])

    def use(self) -> Self:
        self.state.use(self)
        return self

    def synchronize(self) -> None:
        twin = self.state.twin
        wait(twin.record(twin.adopt(self.ptr)), timeout_s=10, what="a stream")

    def __enter__(self) -> Self:
        self.state.stack.append(self)
        return self.use()

    def __exit__(self, *error: object) -> None:
        self.state.stack.pop()
        self.state.use(self.state.stack[-1])


class Array:
    """An array; what is done to it is queued on the current stream."""

    state: State

    def __init__(self, shape: Any, dtype: Any, memptr: MemoryPointer) -> None:
        self.shape, self.dtype, self.data = tuple(shape), np.dtype(dtype), memptr
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.device = Device(0)

    def _memory(self) -> HostMemory:
        return self.state.twin.wrap(self.data.ptr, self.nbytes, self)

    def copy(self) -> Array:
        state = self.state
        made = type(self)(self.shape, self.dtype, state.alloc(self.nbytes))
        state.twin.copy(made._memory(), self._memory(), state.twin.adopt(state.current().ptr))
        return made

    def get(self) -> Any:
        if not self.nbytes:
            return np.zeros(self.shape, self.dtype)
        self.state.current().synchronize()
        return np.frombuffer(bytes(self._memory().view()), self.dtype).reshape(self.shape)


def fake_cupy(twin: Twin) -> Any:
    """Return a module that stands for `cupy`."""
    state = State(twin)
    stream = type("Stream", (Stream,), {"state": state})
    state.null = stream(0)
    cupy: Any = ModuleType("cupy")
    cupy.__version__ = "14.0.0"
    cupy.ndarray = type("ndarray", (Array,), {"state": state})
    cupy.get_default_memory_pool = lambda: SimpleNamespace(used_bytes=state.used_bytes)
    cupy.cuda = SimpleNamespace(
        Device=Device,
        MemoryPointer=MemoryPointer,
        Stream=stream,
        UnownedMemory=UnownedMemory,
        alloc=state.alloc,
        get_current_stream=state.current,
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    return cupy
