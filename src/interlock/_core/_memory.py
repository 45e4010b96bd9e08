"""Host memory: page-aligned, outside Python's heap, given back when the last view of it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, final

from interlock._core._events import Alloc, Region, emit, host_timeline, new_allocation_id, observed
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_HUGE_PAGE_BYTES = 2 << 20


@final
class HostBlock:
    """Pages that memory is made of. Who registers pages with a driver keeps the block; all others let it go.

    Attributes:
        size_bytes: Number of bytes.
        address: Address of the first; 4096-byte aligned.
        fd: Descriptor that other processes can map the same pages by, or -1. It is the block's own: do not close it.
    """

    __slots__ = ("_close", "_pages", "address", "fd", "size_bytes")

    def __init__(self, pages: mmap.mmap, size_bytes: int, fd: int) -> None:
        self._pages = pages
        self._close = os.close  # the module may be gone when the last block is
        self.size_bytes = size_bytes
        self.fd = fd
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))

    def __del__(self) -> None:
        if self.fd >= 0:
            self._close(self.fd)

    @classmethod
    def map(cls, size_bytes: int, device: str, *, shared: bool = False) -> HostBlock:
        """Return fresh pages; their content is zeros.

        Args:
            size_bytes: Number of bytes.
            device: Shown in messages.
            shared: Whether other processes may map them.

        Raises:
            UsageError: `size_bytes` is not positive, or this system has no shared memory without a name.
            MemoryError: The system has no such amount.
        """
        if size_bytes < 1:
            raise UsageError(f"cannot allocate {size_bytes} bytes")
        try:
            fd = _open_shared(size_bytes) if shared else -1
        except OSError as error:
            raise MemoryError(f"no {size_bytes} bytes of shared memory for {device}: {error}") from error
        try:
            return cls(_map(size_bytes, fd), size_bytes, fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise MemoryError(f"no {size_bytes} bytes of host memory for {device}: {error}") from error

    def hide_from_children(self) -> None:
        """Keep the pages out of processes that are forked from now on, unless they are shared anyway.

        Whoever writes first to a page that a fork left in both processes may get another page, while a device goes on
        with the one that it knows: so what was copied would be old bytes. It also saves the system a copy of all pinned
        pages at each fork, which newer kernels make for that reason.

        Source: `madvise(2)` on MADV_DONTFORK, which InfiniBand's `ibv_fork_init(3)` uses to the same end.
        """
        if self.fd < 0 and hasattr(mmap, "MADV_DONTFORK"):
            self._pages.madvise(mmap.MADV_DONTFORK)

    def memory(self, device: str, *, on_device: bool, ended: Callable[[HostBlock], object] | None = None) -> HostMemory:
        """Return memory made of all the pages.

        Args:
            device: Name of the device that it belongs to.
            on_device: As `HostMemory.on_device`.
            ended: Called once with this block when the last view of the memory is gone, on any thread, at any time: it
                must append to a queue and do nothing else. Not called after the interpreter's end has begun.
        """
        region = Region(new_allocation_id(), 0, self.size_bytes)
        if observed():
            emit(Alloc(host_timeline(), region.allocation, self.size_bytes, device))
        exporter = (ctypes.c_ubyte * self.size_bytes).from_buffer(self._pages)
        if ended is None and self.fd >= 0:
            ended = _let_go
        if ended is not None:
            # What the finaliser holds outlives the exporter: so the pages are still there, and the descriptor is open.
            weakref.finalize(exporter, ended, self).atexit = False
        return HostMemory(exporter, region, device, on_device=on_device, address=self.address, fd=self.fd)


@final
class HostMemory:
    """A range of bytes that the host can address. Devices make these; `slice` narrows them.

    Attributes:
        region: Which bytes of which allocation.
        device: Name of the device that the memory belongs to.
        on_device: Whether the bytes stand for device memory (simulated devices) or for staging memory on the host.
        address: Address of the first byte. At least 4096-byte aligned for a whole allocation.
        fd: Descriptor of the whole allocation for `attach` in another process, or -1 if it is not shared. It is closed
            with the memory; a process that is handed it over a socket or by inheritance gets one of its own.
    """

    __slots__ = ("_exporter", "address", "device", "fd", "on_device", "region")

    def __init__(
        self, exporter: ctypes.Array[Any], region: Region, device: str, *, on_device: bool, address: int, fd: int = -1
    ) -> None:
        self._exporter = exporter
        self.region = region
        self.device = device
        self.on_device = on_device
        self.address = address
        self.fd = fd

    def __repr__(self) -> str:
        kind = "device" if self.on_device else "host"
        return f"HostMemory({self.region.size_bytes} bytes, {kind} side of {self.device}, #{self.region.allocation})"

    @classmethod
    def allocate(cls, size_bytes: int, device: str, *, on_device: bool, shared: bool = False) -> HostMemory:
        """Return fresh memory; its content is zeros.

        Args:
            size_bytes: Number of bytes.
            device: Name of the device that it belongs to.
            on_device: As the attribute.
            shared: Whether other processes may map it; see `attach`.

        Raises:
            UsageError: `size_bytes` is not positive, or this system has no shared memory without a name.
            MemoryError: The system has no such amount.
        """
        return HostBlock.map(size_bytes, device, shared=shared).memory(device, on_device=on_device)

    @classmethod
    def attach(cls, fd: int, size_bytes: int, device: str) -> HostMemory:
        """Map memory that another process shares.

        Args:
            fd: A descriptor of its `fd`, valid in this process; not closed, and not needed any more afterwards.
            size_bytes: Size of the whole allocation.
            device: Name of the device that it belongs to, for messages.

        Raises:
            UsageError: The descriptor is not one of memory of that size.
        """
        if fd < 0:
            raise UsageError(f"cannot attach {size_bytes} bytes by descriptor {fd}", hint="share it: shared=True")
        try:
            pages = _map(size_bytes, fd)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot attach {size_bytes} bytes by descriptor {fd}", why=str(error)) from error
        return HostBlock(pages, size_bytes, -1).memory(device, on_device=False)

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
        address = self.address + offset_bytes
        return HostMemory(self._exporter, region, self.device, on_device=self.on_device, address=address, fd=self.fd)

    def view(self) -> memoryview:
        """Return the bytes, writable. The view keeps the memory alive."""
        start = self.region.offset_bytes
        return memoryview(self._exporter).cast("B")[start : start + self.size_bytes]


def _let_go(_: HostBlock) -> None:
    """Let the block go, which closes its descriptor."""


def _open_shared(size_bytes: int) -> int:
    if not hasattr(os, "memfd_create"):
        raise UsageError("this system has no shared memory without a name", hint="use Linux, or shared=False")
    fd = os.memfd_create("interlock", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _map(size_bytes: int, fd: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(fd, size_bytes, flags=flags)
    if size_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: slower first touch, nothing else
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
