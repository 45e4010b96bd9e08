"""Memory of a CUDA device, and host memory that its copy engines read and write at the speed of the link."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, final

from interlock._core._events import Alloc, Region, emit, host_timeline, new_allocation_id, observed
from interlock._core._fence import Fence
from interlock._core._memory import HostBlock
from interlock.devices._cuda_context import OutOfDeviceMemoryError
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._memory import HostMemory
    from interlock.devices._cuda_context import CudaContext
    from interlock.devices._cuda_stream import CudaStream

IDLE_PINNED_BYTES = 1 << 30
"""Most bytes of pinned memory that are kept for the next request of the same size; beyond it the oldest go back."""


@final
class DeviceBlock:
    """An allocation on the device; when nothing refers to it any more it is left in a queue.

    Attributes:
        address: Of the first byte.
        born: When the allocation may be used by other streams than the one that made it.
    """

    __slots__ = ("_leave", "address", "born")

    def __init__(self, address: int, born: Fence, leave: Callable[[int], object]) -> None:
        self.address = address
        self.born = born
        self._leave = leave

    def __del__(self) -> None:
        self._leave(self.address)


@final
class CudaMemory:
    """A range of bytes on a CUDA device. Only devices make these; `slice` narrows them.

    Attributes:
        region: Which bytes of which allocation.
        context: Of the device.
        address: Address of the first byte, as kernels see it.
        owner: What keeps the bytes: a `DeviceBlock`, or whatever `CudaDevice.wrap` was given.
    """

    __slots__ = ("address", "context", "owner", "region")

    def __init__(self, address: int, region: Region, context: CudaContext, owner: object) -> None:
        self.address = address
        self.region = region
        self.context = context
        self.owner = owner

    def __repr__(self) -> str:
        return f"CudaMemory({self.region.size_bytes} bytes of {self.device}, #{self.region.allocation})"

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.context.name

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        return self.region.size_bytes

    def slice(self, offset_bytes: int, size_bytes: int) -> CudaMemory:
        """Return the part of this memory that starts at `offset_bytes`; it keeps the whole alive.

        Raises:
            UsageError: The part is not inside.
        """
        if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self.size_bytes:
            raise UsageError(f"bytes {offset_bytes} to {offset_bytes + size_bytes} are not inside {self!r}")
        region = Region(self.region.allocation, self.region.offset_bytes + offset_bytes, size_bytes)
        return CudaMemory(self.address + offset_bytes, region, self.context, self.owner)

    def view(self) -> memoryview:
        """Raise: the host cannot address this memory.

        Raises:
            DeviceError: Always.
        """
        raise DeviceError(
            f"the host cannot read {self!r}", hint="copy it to memory from device.allocate_host() and wait for the copy"
        )


@final
class DeviceAllocator:
    """Allocates in the order of a stream of its own, from the device's default pool, and never stalls the device.

    What is let go has no copy pending, since queued copies keep their memory: so a free waits for nothing.

    Args:
        context: Of the device.
        stream: The stream; nobody else queues on it.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context = context
        self._stream = stream
        self._left: deque[int] = deque()

    def allocate(self, size_bytes: int) -> CudaMemory:
        """Return memory; its content is undefined.

        Raises:
            UsageError: The size is not positive.
            MemoryError: The device has no such amount.
        """
        if size_bytes < 1:
            raise UsageError(f"cannot allocate {size_bytes} bytes")
        context = self._context
        self.collect()
        try:
            with context:
                address = int(context.ask(context.api.cuMemAllocAsync, size_bytes, self._stream.raw))
        except OutOfDeviceMemoryError:
            raise MemoryError(
                f"{context.name} has no {size_bytes:,} bytes: {context.free_memory()}; make batches or budgets "
                "smaller, or let frameworks hold less (JAX: XLA_PYTHON_CLIENT_MEM_FRACTION, "
                "torch: torch.cuda.empty_cache())"
            ) from None
        born = Fence([(self._stream, self._stream.record())])
        region = Region(new_allocation_id(), 0, size_bytes)
        if observed():
            emit(Alloc(host_timeline(), region.allocation, size_bytes, context.name))
        return CudaMemory(address, region, context, DeviceBlock(address, born, self._left.append))

    def collect(self) -> None:
        """Give back what nothing refers to any more."""
        if not self._left or self._context.lost is not None:
            return
        with self._context:
            while self._left:
                try:
                    address = self._left.popleft()
                except IndexError:  # another thread was faster
                    return
                self._context.ask(self._context.api.cuMemFreeAsync, address, self._stream.raw)


@final
class PinnedPool:
    """Host memory registered with the driver: for every device of the process, and used again when let go.

    Args:
        context: Of the device that registers it.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._left: deque[HostBlock] = deque()
        self._idle: OrderedDict[int, HostBlock] = OrderedDict()
        self._live: dict[int, HostBlock] = {}
        self._lock = threading.Lock()
        self.idle_bytes = 0

    def allocate(self, size_bytes: int, *, shared: bool) -> HostMemory:
        """Return pinned memory, at least 4096-byte aligned. Its content is undefined.

        Args:
            size_bytes: Number of bytes.
            shared: Whether other processes may map it.

        Raises:
            UsageError: The size is not positive.
            MemoryError: The system has no such amount, or may not lock it.

        Blocks: fresh memory takes the time that the system needs to provide the pages, about 0.3 s for 1 GB.
        """
        context = self._context
        if context.lost is not None:
            raise context.gone()
        self.collect()
        block = self._reuse(size_bytes, shared=shared)
        if block is None:
            try:
                block = self._fresh(size_bytes, shared=shared)
            except MemoryError:
                if not self._idle:
                    raise
                self._shrink(0)
                block = self._fresh(size_bytes, shared=shared)
        with self._lock:
            self._live[id(block)] = block
        return block.memory(context.name, on_device=False, ended=self._left.append)

    def _reuse(self, size_bytes: int, *, shared: bool) -> HostBlock | None:
        with self._lock:
            for key, block in self._idle.items():
                if block.size_bytes == size_bytes and (block.fd >= 0) == shared:
                    del self._idle[key]
                    self.idle_bytes -= size_bytes
                    return block
        return None

    def _fresh(self, size_bytes: int, *, shared: bool) -> HostBlock:
        context, api = self._context, self._context.api
        block = HostBlock.map(size_bytes, context.name, shared=shared)
        block.hide_from_children()
        try:
            with context:
                context.ask(api.cuMemHostRegister, block.address, size_bytes, api.CU_MEMHOSTREGISTER_PORTABLE)
        except OutOfDeviceMemoryError:
            raise MemoryError(
                f"{context.name} cannot pin {size_bytes:,} bytes of host memory: the system has no such amount "
                "free, or may not lock it; make budgets smaller or raise the limit (ulimit -l)"
            ) from None
        return block

    def collect(self) -> None:
        """Take in what nothing refers to any more; give back what is beyond the bound."""
        while self._left:
            try:
                block = self._left.popleft()
            except IndexError:  # another thread was faster
                break
            with self._lock:
                del self._live[id(block)]
                self._idle[id(block)] = block
                self.idle_bytes += block.size_bytes
        self._shrink(IDLE_PINNED_BYTES)

    def _shrink(self, most_bytes: int) -> None:
        if self.idle_bytes <= most_bytes or self._context.lost is not None:
            return
        surplus = []
        with self._lock:
            while self.idle_bytes > most_bytes:
                _, block = self._idle.popitem(last=False)
                self.idle_bytes -= block.size_bytes
                surplus.append(block)
        with self._context:
            for block in surplus:
                self._context.ask(self._context.api.cuMemHostUnregister, block.address)

    def close(self) -> None:
        """Give back what nobody uses."""
        self.collect()
        self._shrink(0)
