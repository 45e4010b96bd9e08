"""A gate in a stream: makes a window of microseconds certain, so that a test on a tiny model shows an early read."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self, final, runtime_checkable

from interlock._core._fence import Fence, HostTimeline
from interlock._core._handover import StreamDevice
from interlock._core._queue import OperationQueue
from interlock.devices import open_device
from interlock.errors import BoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from interlock._core._fence import Timeline
    from interlock._core._memory import HostMemory
    from interlock._core._protocols import Device

_OPEN = (1).to_bytes(4, "little")
_FLAG_BYTES = 64
_FLAGS_AT_ONCE = 64

_spare: weakref.WeakKeyDictionary[_CanHold, list[HostMemory]] = weakref.WeakKeyDictionary()
"""Flags that were not used yet."""


@runtime_checkable
class _CanHold(Protocol):
    """A device whose streams wait for a flag in memory, as CUDA's."""

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory: ...
    def hold(self, stream: Timeline, flag: HostMemory) -> None: ...


def gate(stream: object, *, device: Device | None = None, timeout_s: float = 10.0) -> Gate:
    """Hold everything that is queued on `stream` from now on, by anybody, until the gate is opened.

    Args:
        stream: A `torch.cuda.Stream`, a CuPy stream, anything with `__cuda_stream__`, the number of a stream of the
            current CUDA device, or a stream of one of Interlock's own devices. In a simulation, its streams.
        device: Device of the stream, where the stream cannot say: needed for streams of a `SimulatedDevice`.
        timeout_s: After so many seconds the gate opens by itself, and says so with a `BoundError` when it is closed for
            good: what a host does under a closed gate that waits for the stream (`torch.cuda.synchronize()`, `.cpu()`,
            `.item()`) would never end otherwise.

    Returns:
        The gate, closed. It is opened by `open`, at the end of its `with` block (also by an exception), when it is
        garbage, and at the end of the process.

    Raises:
        UsageError: That is no stream, or not one of a device that can be held.
        DeviceError: The driver refused.

    Some things wait for every stream of a device when they are done for the first time: loading a kernel, pinning
    memory, making a pool larger. Do once before the gate what is to be done under it.

    Ordering: work that was queued before goes on; other streams too, unless they wait for this one, or share one of the
        few hardware queues with it that a driver puts streams into (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default).

    Blocks: never.

    Example:
        ::

            with gate(torch.cuda.current_stream()):
                writer.write(model(batch))      # a copy to the host that nobody waits for cannot have landed
    """
    if timeout_s <= 0:
        raise UsageError(f"a gate cannot open after {timeout_s:g} s")
    timeline, owner = _find(stream, device)
    if isinstance(owner, _CanHold):
        flag = _fresh_flag(owner)
        view = flag.view()
        view[:4] = bytes(4)
        owner.hold(timeline, flag)
        return Gate(_Latch(lambda: view.__setitem__(slice(0, 4), _OPEN)), timeout_s)
    host = HostTimeline(f"gate of {timeline.name}")
    tick = host.next_tick()
    owner.wait(timeline, Fence([(host, tick)]))
    return Gate(_Latch(lambda: host.reach(tick)), timeout_s)


def _fresh_flag(owner: _CanHold) -> HostMemory:
    """Return memory for a flag. Many are pinned at once, since pinning waits for the streams that other gates hold."""
    flags = _spare.setdefault(owner, [])
    try:
        return flags.pop()
    except IndexError:
        page = owner.allocate_host(_FLAGS_AT_ONCE * _FLAG_BYTES)
        first, *others = [page.slice(number * _FLAG_BYTES, _FLAG_BYTES) for number in range(_FLAGS_AT_ONCE)]
        flags.extend(others)
        return first


@final
class _Latch:
    """Opens once, by whoever comes first; knows nothing of the gate, which so may become garbage."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = [release]
        self._own_process = os.getpid  # the module may be gone when the gate is
        self._process = os.getpid()
        self.timed_out = False

    @property
    def is_open(self) -> bool:
        """Whether the stream may go on."""
        return not self._release

    def open(self) -> None:
        """Let the stream go on. In the child of a fork the gate is not ours, nor is the flag's memory there."""
        try:
            release = self._release.pop()  # and let go of what it holds: a thread may keep this latch for a while
        except IndexError:
            return
        if self._own_process() == self._process:
            release()

    def give_up(self) -> None:
        """Let it go on because the time is over."""
        self.timed_out = not self.is_open  # first: who waited for the stream asks as soon as it goes on
        self.open()


@final
class Gate:
    """A gate in a stream, from `gate`."""

    def __init__(self, latch: _Latch, timeout_s: float) -> None:
        self._latch = latch
        self._timeout_s = timeout_s
        self._watchdog = threading.Timer(timeout_s, latch.give_up)
        self._watchdog.daemon = True
        self._watchdog.name = "interlock gate"
        atexit.register(latch.open)  # comes before the devices' own hooks, which wait for the stream
        self._watchdog.start()

    def __repr__(self) -> str:
        return f"Gate({'open' if self.is_open else 'closed'})"

    @property
    def is_open(self) -> bool:
        """Whether the stream may go on."""
        return self._latch.is_open

    def open(self) -> None:
        """Let the stream go on; a second time does nothing.

        Raises:
            BoundError: It had opened by itself before, since its time was over.
        """
        self._close_down()
        if self._latch.timed_out:
            self._latch.timed_out = False  # said once
            raise BoundError(
                f"the gate opened by itself after {self._timeout_s:g} s",
                why="something waited for the held stream, or the test takes longer",
                hint="do not synchronise under a closed gate, or raise timeout_s",
            )

    def _close_down(self) -> None:
        self._watchdog.cancel()
        self._latch.open()
        atexit.unregister(self._latch.open)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.open()
        else:
            self._close_down()

    def __del__(self) -> None:
        self._close_down()


def _find(stream: Any, device: Device | None) -> tuple[Timeline, Device]:
    """Return a stream as a timeline, and its device."""
    simulated = getattr(stream, "queue", None)
    if isinstance(simulated, OperationQueue):  # a stream as programs see it in a simulation
        return simulated, open_device("cuda")
    if hasattr(stream, "reached") and hasattr(stream, "name"):
        return stream, device if device is not None else open_device(stream.name.partition("/")[0])
    owner = device if device is not None else open_device(_device_of(stream))
    if not isinstance(owner, StreamDevice):
        raise UsageError(f"{owner.name} has no streams that others know by a number", hint="pass one of its own")
    return owner.adopt(_handle_of(stream)), owner


def _handle_of(stream: Any) -> int:
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise UsageError(f"{stream!r} is no stream", hint="pass a torch or CuPy stream, or the number of a CUDA stream")


def _device_of(stream: Any) -> str:
    index = getattr(stream, "device_index", getattr(stream, "device_id", None))
    return f"cuda:{index}" if isinstance(index, int) and index >= 0 else "cuda"
