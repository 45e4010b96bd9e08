"""Host memory: page-aligned, outside Python's heap, given back when the last view of it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import final

from interlock._core._events import Alloc, Region, emit, host_timeline, new_allocation_id, observed
from interlock.errors import UsageError

_HUGE_PAGE_BYTES = 2 << 20


@final
class HostMemory:
    """A range of bytes that the host can address. Only devices make these; `slice` narrows them.

    Attributes:
        region: Which bytes of which allocation.
        device: Name of the device that the memory belongs to.
        on_device: Whether the bytes stand for device memory (simulated devices) or for staging memory on the host.
        address: Address of the first byte. At least 4096-byte aligned for a whole allocation.
    """

    __slots__ = ("_buffer", "address", "device", "on_device", "region")

    def __init__(self, buffer: mmap.mmap, region: Region, device: str, *, on_device: bool, address: int) -> None:
        self._buffer = buffer
        self.region = region
        self.device = device
        self.on_device = on_device
        self.address = address

    def __repr__(self) -> str:
        kind = "device" if self.on_device else "host"
        return f"HostMemory({self.region.size_bytes} bytes, {kind} side of {self.device}, #{self.region.allocation})"

    @classmethod
    def allocate(cls, size_bytes: int, device: str, *, on_device: bool) -> HostMemory:
        """Return fresh memory; its content is zeros.

        Raises:
            UsageError: `size_bytes` is not positive.
            MemoryError: The system has no such amount.
        """
        if size_bytes < 1:
            raise UsageError(f"cannot allocate {size_bytes} bytes")
        try:
            buffer = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no {size_bytes} bytes of host memory for {device}: {error}") from error
        if size_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: slower first touch, nothing else
                buffer.madvise(mmap.MADV_HUGEPAGE)
        region = Region(new_allocation_id(), 0, size_bytes)
        if observed():
            emit(Alloc(host_timeline(), region.allocation, size_bytes, device))
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return cls(buffer, region, device, on_device=on_device, address=address)

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        return self.region.size_bytes

    def slice(self, offset_bytes: int, size_bytes: int) -> HostMemory:
        """Return the part of this memory that starts at `offset_bytes`; it keeps the whole alive.

        Raises:
            UsageError: The part is not inside.
        """
        if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self.size_bytes:
            raise UsageError(f"bytes {offset_bytes} to {offset_bytes + size_bytes} are not inside {self!r}")
        region = Region(self.region.allocation, self.region.offset_bytes + offset_bytes, size_bytes)
        return HostMemory(
            self._buffer, region, self.device, on_device=self.on_device, address=self.address + offset_bytes
        )

    def view(self) -> memoryview:
        """Return the bytes, writable. The view keeps the memory alive."""
        start = self.region.offset_bytes
        return memoryview(self._buffer)[start : start + self.size_bytes]
