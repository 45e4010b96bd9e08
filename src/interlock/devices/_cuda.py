"""CUDA devices, on the driver's own interface: no framework is needed, and every framework can share them.

Copies run on streams of their own at the speed of the link; fences are events, polled; nothing here makes a host thread
wait, and `host_syncs` counts what does nevertheless.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, final

from interlock._core._events import Access, Record, Region, Wait, emit, host_timeline, new_allocation_id, observed
from interlock._core._fence import Fence
from interlock._core._memory import HostMemory
from interlock._core._sites import here
from interlock._core._spans import copy_name, expect
from interlock.devices._cuda_context import CudaContext, EventPool, describe
from interlock.devices._cuda_memory import CudaMemory, DeviceAllocator, PinnedPool
from interlock.devices._cuda_spans import Stopwatch
from interlock.devices._cuda_stream import LEGACY, PER_THREAD, CudaStream
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from interlock._core._fence import Timeline
    from interlock._core._protocols import Memory
    from interlock.devices._cuda_spans import TimeMark

_EXIT_BOUND_S = 10.0
"""How long the end of the process waits for queued copies."""

_EXIT_PAUSE_S = 1e-3


@final
class CudaDevice:
    """One CUDA device.

    Uses the primary context, as frameworks do, and leaves every thread's current context as it was. Safe to use from
    several threads. After a fork the child cannot use it: `DeviceError`.

    Args:
        index: Number among the devices that the process sees.
        driver: Stands for `cuda.bindings.driver`, in tests.

    Raises:
        UsageError: There is no CUDA here, or no such device.
    """

    def __init__(self, index: int = 0, *, driver: Any = None) -> None:
        api = load_driver() if driver is None else driver
        count = device_count(api)
        if not 0 <= index < count:
            there = ", ".join(f"cuda:{number}" for number in range(count)) or "none"
            raise UsageError(f"there is no device cuda:{index}", why=f"the driver shows {there}", hint=_VISIBLE_HINT)
        self._context = CudaContext(api, index)
        self._lock = threading.Lock()
        self._events = EventPool(self._context)
        self._stopwatch = Stopwatch(self._context, self._new_raw())
        self._streams: dict[str, CudaStream] = {}
        self._adopted: dict[tuple[int, int], CudaStream] = {}
        self._memory = DeviceAllocator(self._context, self._own_stream("memory"))
        self._pinned = PinnedPool(self._context)
        expect(self)
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        return f"CudaDevice({self.index})"

    @property
    def name(self) -> str:
        """`cuda:INDEX`."""
        return self._context.name

    @property
    def index(self) -> int:
        """As given."""
        return self._context.index

    @property
    def host_visible(self) -> bool:
        """False: what the device works on must be copied to it."""
        return False

    @property
    def host_syncs(self) -> int:
        """How often this device's code made a host thread wait. Copies from or to memory that is not pinned count."""
        return self._context.host_syncs

    # ------------------------------------------------------------ memory

    def allocate(self, size_bytes: int) -> CudaMemory:
        """As in `Device`, 256-byte aligned, from the driver's default pool. It goes back when the last use has ended.

        Raises:
            UsageError: The size is not positive.
            MemoryError: The device has no such amount; the message says what is free.

        Ordering: copies through this device come after the allocation; other work on it must come after a copy.
        """
        return self._memory.allocate(size_bytes)

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory:
        """As in `Device`: pinned, for every device of the process; used again when the last view of it is gone.

        The child of a fork has no such memory, and dies if it reads it, unless it is shared.

        Args:
            size_bytes: Number of bytes.
            shared: Whether other processes may map it and write into it; see `HostMemory.attach`.

        Raises:
            UsageError: The size is not positive.
            MemoryError: The system has no such amount, or may not lock it.

        Blocks: fresh memory takes 0.2 to 0.3 s for 1 GB, and the driver may wait for work that is queued on the device;
            memory of a size that was let go before takes no time. At most 1 GiB that nobody uses is kept for that.
        """
        return self._pinned.allocate(size_bytes, shared=shared)

    def wrap(self, address: int, size_bytes: int, owner: object) -> CudaMemory:
        """As in `StreamDevice`."""
        return CudaMemory(address, Region(new_allocation_id(), 0, size_bytes), self._context, owner)

    def check(self) -> None:
        """Do nothing, if the device can be used.

        Raises:
            DeviceError: It is lost, or was opened before a fork.
        """
        if self._context.lost is not None:
            raise self._context.gone()

    def collect(self) -> None:
        """Let go of what finished copies kept, and give back memory that nothing refers to. Never waits."""
        if self._context.lost is not None:  # so it is in a forked child too, where locks may be held for ever
            return
        for stream in self._all_streams():
            stream.collect()
        self._memory.collect()
        self._pinned.collect()
        self._stopwatch.collect()

    # ------------------------------------------------------------ streams

    def stream(self, name: str) -> CudaStream:
        """As in `Device`: not ordered with the legacy default stream, and of high priority."""
        known = self._streams.get(name)
        return known if known is not None else self._own_stream(name)

    def adopt(self, handle: int) -> CudaStream:
        """As in `StreamDevice`. The per-thread stream may be used only on the thread that adopted it."""
        self.check()
        handle = LEGACY if handle == 0 else handle
        key = (handle, threading.get_ident() if handle == PER_THREAD else 0)
        with self._lock:
            known = self._adopted.get(key)
            if known is None:
                names = {LEGACY: "default", PER_THREAD: f"default of thread {key[1]}"}
                name = f"{self.name}/{names.get(handle, f'stream {handle:#x}')}"
                raw = self._context.api.CUstream(handle)
                known = CudaStream(name, raw, self._context, self._events, self._stopwatch, adopted=True)
                self._adopted[key] = known
            return known

    def handle(self, stream: Timeline) -> int:
        """As in `StreamDevice`."""
        return int(self._own(stream).raw)

    def copy(self, target: Memory, source: Memory, stream: Timeline) -> None:
        """As in `Device`; between two CUDA devices too. Both memories are kept until the copy is done.

        Blocks: only where one side is host memory that is not pinned; counted in `host_syncs`.
        """
        if target.size_bytes != source.size_bytes:
            raise UsageError(f"cannot copy {source.size_bytes} bytes to {target.size_bytes}")
        own = self._own(stream)
        if observed():
            issuer, site = host_timeline(), here()
            emit(Access(own.name, source.region, "read", "copy", issuer, site))
            emit(Access(own.name, target.region, "write", "copy", issuer, site))
        if target.size_bytes:
            own.copy(target, source, *self._way(target, source))

    def wait(self, stream: Timeline, fence: Fence) -> None:
        """As in `Device`.

        Fences of CUDA streams, also of other devices, are waited for on the device. For any other fence that is not
        reached yet, what is queued on the stream through this device is held back on the host until somebody asks for
        a fence behind it and it is reached.

        Raises:
            UsageError: The stream is another device's; or it was adopted, and the fence can be seen on the host only:
                then work that its owner queues could not be held back.
        """
        own = self._own(stream)
        if observed():
            emit(Wait(own.name, fence.plain(), here()))
        own.wait(fence)

    def record(self, stream: Timeline) -> Fence:
        """As in `Device`."""
        own = self._own(stream)
        tick = own.record()
        self._memory.collect()
        if observed():
            emit(Record(own.name, tick, here()))
        return Fence([(own, tick)])

    def hold(self, stream: Timeline, flag: HostMemory) -> None:
        """Hold what anybody queues on `stream` from now on until the first 32 bits of `flag` are positive.

        Args:
            stream: One of this device's streams; may be adopted.
            flag: From `allocate_host`; kept until the stream has gone on.
        """
        own, context = self._own(stream), self._context
        compare = context.api.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ

        def wait_for_flag(raw: Any) -> Any:
            with context:
                return context.api.cuStreamWaitValue32(raw, flag.address, 1, int(compare))

        own.copy(flag, flag, "hold", (wait_for_flag,))
        own.record()

    # ------------------------------------------------------------ times

    def mark(self, stream: Timeline) -> TimeMark | None:
        """As in `Marks`. Work that is held back for a fence that only the host sees comes after the mark.

        None where a graph is being captured: what is put into it has no time.
        """
        own = self._own(stream)
        return None if own.is_captured() else self._stopwatch.mark(own)

    def report_between(
        self, start: TimeMark | None, end: TimeMark | None, name: str, *, size_bytes: int = 0, number: int = -1
    ) -> None:
        """As in `Marks`; nothing if one of the marks is None."""
        if start is not None and end is not None:
            self._stopwatch.report_between(start, end, name, size_bytes=size_bytes, number=number)

    def report_due(self) -> None:
        """As in `Marks`."""
        self._stopwatch.collect()

    def unreported(self) -> Fence:
        """As in `Marks`."""
        late = self._stopwatch.late()
        return Fence([(stream, stream.record() if tick is None else tick) for stream, tick in late.items()])

    # ------------------------------------------------------------ inside

    def _own(self, stream: Timeline) -> CudaStream:
        if not isinstance(stream, CudaStream) or stream.context is not self._context:
            raise UsageError(f"{stream!r} is not a stream of {self.name}", hint="get one from device.stream(name)")
        return stream

    def _own_stream(self, name: str) -> CudaStream:
        self.check()
        with self._lock:
            if name not in self._streams:
                self._streams[name] = CudaStream(
                    f"{self.name}/{name}",
                    self._new_raw(),
                    self._context,
                    self._events,
                    self._stopwatch,
                    adopted=False,
                )
            return self._streams[name]

    def _new_raw(self) -> Any:
        context, api = self._context, self._context.api
        flags = int(api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with context:
            _, _, greatest = api.cuCtxGetStreamPriorityRange()
            return context.ask(api.cuStreamCreateWithPriority, flags, greatest)

    def _all_streams(self) -> list[CudaStream]:
        with self._lock:
            return [*self._streams.values(), *self._adopted.values()]

    def _way(self, target: Memory, source: Memory) -> tuple[str, tuple[Any, ...]]:
        """Return a copy's name for traces, and its call of the driver without the stream."""
        api, size = self._context.api, target.size_bytes
        from_device, to_device = isinstance(source, CudaMemory), isinstance(target, CudaMemory)
        name = copy_name(from_device=from_device, to_device=to_device)
        if isinstance(source, CudaMemory) and isinstance(target, CudaMemory) and target.context is not source.context:
            ends = (target.address, target.context.handle, source.address, source.context.handle)
            return name, (api.cuMemcpyPeerAsync, *ends, size)
        if not _is_fast(target) or not _is_fast(source):
            self._context.host_syncs += 1  # the driver copies such memory through its own, while the caller waits
        return name, (api.cuMemcpyAsync, target.address, source.address, size)

    def _at_exit(self) -> None:
        """Let queued work end before the memory that it uses goes away with the interpreter."""
        if self._context.lost is not None:  # so it is in a forked child too, where locks may be held for ever
            return
        deadline, nobody_calls = time.monotonic() + _EXIT_BOUND_S, threading.Event()
        with contextlib.suppress(DeviceError):  # a lost context has no work left
            for stream in self._all_streams():
                while stream.busy() and time.monotonic() < deadline:
                    nobody_calls.wait(_EXIT_PAUSE_S)  # no thread can be started any more that could block in the driver


def _is_fast(memory: Memory) -> bool:
    """Tell whether the copy engines reach memory by themselves: on a device, or pinned by one."""
    return isinstance(memory, CudaMemory) or (isinstance(memory, HostMemory) and memory.device.startswith("cuda:"))


_VISIBLE_HINT = "use one of those; CUDA_VISIBLE_DEVICES hides devices from a process"

_devices: dict[int, CudaDevice] = {}
_devices_lock = threading.Lock()


def open_cuda(argument: str) -> CudaDevice:
    """Return a device of this process; the same object each time.

    Args:
        argument: Its index, or empty for the calling thread's current device, which is 0 where the thread has none.

    Raises:
        UsageError: There is no CUDA here, or no such device.
        DeviceError: The device is lost, or was opened before a fork.
    """
    if argument and not argument.isdecimal():
        raise UsageError(f"no device is called 'cuda:{argument}'", hint="use cuda, or cuda:N with the device's index")
    api = load_driver()
    device_count(api)
    index = int(argument) if argument else current_index(api)
    with _devices_lock:
        if index not in _devices:
            _devices[index] = CudaDevice(index, driver=api)
        device = _devices[index]
    device.check()
    return device


def load_driver() -> Any:
    """Return the module `cuda.bindings.driver`.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UsageError(
            "no CUDA device can be opened",
            why=f"the package cuda-bindings is missing ({error})",
            hint="pip install 'interlock[cuda]'",
        ) from error


def device_count(api: Any) -> int:
    """Start the driver, if it is not yet, and return how many devices this process sees.

    Args:
        api: As in `CudaDevice`.

    Raises:
        UsageError: There is no driver or no device.
        DeviceError: The driver does not start.
    """
    try:
        code = api.cuInit(0)[0]
    except (RuntimeError, OSError) as error:  # how the bindings say that there is no driver library
        raise UsageError(
            "no CUDA device can be opened",
            why="there is no NVIDIA driver on this machine",
            hint="use the device host, or simulated:SCHEDULE to test",
        ) from error
    known = api.CUresult
    if code == known.CUDA_ERROR_NO_DEVICE:
        raise UsageError("no CUDA device can be opened", why="the driver shows none", hint=_VISIBLE_HINT)
    if code == known.CUDA_ERROR_NOT_INITIALIZED:
        raise DeviceError(
            "CUDA cannot be used in this process",
            why="it was forked from one that had started CUDA already",
            hint="start workers with the method 'spawn'",
        )
    if code != known.CUDA_SUCCESS:
        name, text = describe(api, code)
        raise DeviceError("the CUDA driver does not start", why=f"{name}, {text}", hint="see what nvidia-smi says")
    return int(api.cuDeviceGetCount()[1])


def current_index(api: Any) -> int:
    """Return the index of the device that the calling thread works on now; 0 if it has none yet."""
    known = api.CUresult
    code, context = api.cuCtxGetCurrent()
    if code != known.CUDA_SUCCESS or not int(context):
        return 0
    code, device = api.cuCtxGetDevice()
    return int(device) if code == known.CUDA_SUCCESS else 0


def _renew_lock() -> None:
    global _devices_lock  # noqa: PLW0603 - a child of a fork cannot wait for who held it
    _devices_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
