"""One device's context in the CUDA driver: checked calls, and what becomes of them when the context is lost."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, final

from interlock.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_STICKY = frozenset(
    {
        "CUDA_ERROR_DEINITIALIZED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_UNKNOWN",
    }
)
"""After one of these the context does nothing any more, whatever is asked of it."""

_EVENTS_AT_ONCE = 16

_contexts: weakref.WeakSet[CudaContext] = weakref.WeakSet()


class OutOfDeviceMemoryError(DeviceError):
    """The driver has no such amount; whoever asked for memory says so in a `MemoryError`."""


@final
class CudaContext:
    """The primary context of one device, retained for the life of the process.

    As a context manager it is the calling thread's current one inside the block; what was current before is so again
    afterwards. Copies, events and waits on streams with a handle of their own need none, but see `is_needed`.

    Args:
        api: The module `cuda.bindings.driver`, or what stands for it.
        index: Number of the device.

    Attributes:
        api: As given.
        index: As given.
        lost: Why nothing works any more, or None.
        host_syncs: How often a host thread was made to wait.
    """

    def __init__(self, api: Any, index: int) -> None:
        self.api = api
        self.index = index
        self.name = f"cuda:{index}"
        self.lost: DeviceError | None = None
        self.host_syncs = 0
        self._success = api.CUresult.CUDA_SUCCESS
        self._relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._before = threading.local()
        self._handle: Any = None
        self._handle = self.ask(api.cuDevicePrimaryCtxRetain, self.ask(api.cuDeviceGet, index))
        self._number = int(self._handle)
        _contexts.add(self)

    def __enter__(self) -> None:
        self.ask(self.api.cuCtxPushCurrent, self._handle)
        self._before.__dict__.setdefault("modes", []).append(self.relax())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore(self._before.modes.pop())
        self.api.cuCtxPopCurrent()  # unchecked: what went wrong inside the block is the news

    def relax(self) -> Any:
        """Let this thread do what could upset a graph that another thread captures, but does not; for `restore`.

        Source: PyTorch does the same around the queries of its own background threads.
        """
        return self.api.cuThreadExchangeStreamCaptureMode(self._relaxed)[1]

    def restore(self, mode: Any) -> None:
        """Undo `relax`."""
        self.api.cuThreadExchangeStreamCaptureMode(mode)

    @property
    def handle(self) -> Any:
        """The driver's context."""
        return self._handle

    def ask(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the driver and return what it returns.

        Raises:
            DeviceError: The driver refused; if the context is lost, that is kept in `lost`.
            OutOfDeviceMemoryError: There is not so much memory.
        """
        if self.lost is not None:
            raise self.gone()
        code, *values = function(*arguments)
        if code != self._success:
            raise self.error_of(code, function.__name__)
        return values[0] if values else None

    def error_of(self, code: Any, what: str) -> DeviceError:
        """Return the error that `code` stands for, and keep it in `lost` if nothing can work after it."""
        name, text = describe(self.api, code)
        if code == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return OutOfDeviceMemoryError(f"{self.name} refused {what}", why=f"{name}, {text}", hint=_MEMORY_HINT)
        if name not in _STICKY:
            return DeviceError(f"{self.name} refused {what}", why=f"{name}, {text}", hint=_HINTS.get(name, _HINT))
        self.lose(DeviceError(f"{self.name} is lost", why=f"{name}, {text}; first seen by {what}", hint=_LOST_HINT))
        return self.gone()

    def lose(self, cause: DeviceError) -> None:
        """Say that nothing works any more; the first cause stays."""
        if self.lost is None:
            self.lost = cause

    def gone(self) -> DeviceError:
        """Return a fresh error that says why nothing works any more."""
        lost = self.lost
        if lost is None:
            return DeviceError(f"{self.name} is lost")
        return DeviceError(lost.what, why=lost.why, hint=lost.hint)

    def is_needed(self, *, for_own_streams: bool) -> bool:
        """Tell whether work must be queued inside the block, given what the calling thread's current context is.

        Without a current context copies find theirs by the stream; with another device's, as XLA leaves it where there
        are several, the driver refuses them.

        Args:
            for_own_streams: For streams with a handle of their own; else for the default streams of the context.
        """
        code, current = self.api.cuCtxGetCurrent()
        number = int(current)
        return code != self._success or (number != self._number and not (for_own_streams and number == 0))

    def free_memory(self) -> str:
        """Say how much memory is free, for messages."""
        with self:
            code, free, total = self.api.cuMemGetInfo()
        return f"{free:,} of {total:,} bytes are free" if code == self._success else "what is free is not known"


_HINT = "CUDA's driver API documentation says when this call returns that error"

_HINTS = {
    "CUDA_ERROR_INVALID_VALUE": "has memory that was given to device.wrap() been freed, or is it another device's?",
    "CUDA_ERROR_INVALID_HANDLE": "has a stream that was adopted been destroyed?",
    "CUDA_ERROR_INVALID_CONTEXT": "has the device been reset, or its primary context released, by another library?",
}

_MEMORY_HINT = "see with nvidia-smi who holds the device's memory; what frameworks cache counts too"

_LOST_HINT = (
    "a kernel queued before did this: run with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find it; "
    "this process cannot use the device again"
)


def describe(api: Any, code: Any) -> tuple[str, str]:
    """Return CUDA's name of an error and its text."""
    texts = []
    for function in (api.cuGetErrorName, api.cuGetErrorString):
        found, text = function(code)
        known = found == api.CUresult.CUDA_SUCCESS and text is not None
        texts.append(text.decode() if known else f"error {int(code)}")
    return texts[0], texts[1]


@final
class PooledEvent:
    """An event of the driver, which goes back to its pool with the last reference.

    Attributes:
        raw: The driver's event.
    """

    __slots__ = ("_give_back", "raw")

    def __init__(self, raw: Any, give_back: Callable[[Any], object]) -> None:
        self.raw = raw
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self.raw)


@final
class EventPool:
    """Events that are used again and again.

    Args:
        context: Whose events.
        timed: Whether they take times.
    """

    def __init__(self, context: CudaContext, *, timed: bool = False) -> None:
        self._context = context
        flags = context.api.CUevent_flags
        self._flags = int(flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING)
        self._free: list[Any] = []

    def take(self) -> PooledEvent:
        """Return an event that nobody else has."""
        try:
            raw = self._free.pop()
        except IndexError:
            with self._context:
                create = self._context.api.cuEventCreate
                raw, *others = [self._context.ask(create, self._flags) for _ in range(_EVENTS_AT_ONCE)]
            self._free.extend(others)
        return PooledEvent(raw, self._free.append)  # which a finaliser may call on any thread


def _lose_all_in_child() -> None:
    for context in tuple(_contexts):
        context.lose(
            DeviceError(
                f"{context.name} cannot be used in this process",
                why="it was forked from one that uses the device, and CUDA does not survive a fork",
                hint="start workers with the method 'spawn', or fork before the device is opened",
            )
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_all_in_child)
