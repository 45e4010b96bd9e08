"""Memory that XLA holds: how it gets it, and how a process ends although XLA holds it."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax

from interlock.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from interlock._core._fence import Fence
    from interlock._core._handover import StreamDevice
    from interlock._core._protocols import Memory

_DLPACK_CUDA = 2


@final
class Holder:
    """What XLA keeps alive for as long as it reads a part of a slot, on the host or on a device.

    Its end proves that the last computation on the memory is done.

    Args:
        memory: The part.
        token: Kept alive too: the slot is lent as long.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_memory", "_token")

    def __init__(self, memory: Memory, token: object) -> None:
        self._memory = memory
        self._token = token
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (memory.size_bytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
        }


@final
@dataclass(frozen=True, slots=True)
class _Export:
    """The producer's side of DLPack: makes the stream that JAX names wait for the copy, then gives the memory.

    Source: https://dmlc.github.io/dlpack/latest/python_spec.html; JAX passes the stream on which it expects events of
    others, by keyword.
    """

    device: Any  # a `StreamDevice`
    ready: Fence
    view: Any

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, self.device.index

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:  # the consumer's way to say that it orders its reads itself
            self.device.wait(self.device.adopt(stream or 1), self.ready)  # None is the legacy default stream
        return self.view.__dlpack__(stream=-1)


def import_memory(
    device: StreamDevice, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any], ready: Fence, holder: Holder
) -> jax.Array:
    """Return the JAX array that is `memory`.

    Args:
        device: Whose memory it is.
        memory: The bytes of the array, C-contiguous.
        shape: Shape of the array.
        dtype: One that JAX takes as it is.
        ready: When the bytes are there.
        holder: XLA keeps it alive until its last use of the memory is done.

    Ordering: every computation on the array comes after `ready`. The host waits for nothing.

    Copies: none.

    Raises:
        UsageError: A package is missing.
    """
    try:
        from cuda.core import Buffer  # noqa: PLC0415 - an extra
        from cuda.core.utils import StridedMemoryView  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("JAX arrays on CUDA need cuda-core", hint="pip install 'interlock[cuda]'") from error
    buffer = Buffer.from_handle(memory.address, memory.size_bytes, owner=holder)
    view = StridedMemoryView.from_buffer(buffer, shape, dtype=dtype)
    array: jax.Array = jax.dlpack.from_dlpack(_Export(device, ready, view))
    return array


@final
class Imports:
    """What XLA holds, so that the process ends after XLA's threads have let go of it.

    They need the interpreter for that, and one that asks for it while the interpreter shuts down aborts the process.
    `block_until_ready` is not enough: a thread lets go of its inputs a little after the result is ready.
    """

    _PAUSE_S = 0.02
    _QUIET_PAUSES = 3
    """Nothing runs any more if this many pauses in a row bring no end and use no more processor time than `_IDLE_S`."""
    _PATIENT_PAUSES = 50
    """The same where an end must come, because the device is done and no array that lives holds the memory."""
    _IDLE_S = 0.002
    _BOUND_S = 60.0

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._ended: queue.SimpleQueue[weakref.ref[Any]] = queue.SimpleQueue()
        self._devices: set[int] = set()
        self._ending = False
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self.forget)

    def watch(self, holder: object, *, device: int | None = None, address: int = 0) -> None:
        """Note that XLA is about to hold `holder`, which nobody else does.

        Args:
            holder: Goes when XLA lets go of the memory.
            device: Number of the CUDA device that the memory is on; None for the host.
            address: Of the memory, on a device.
        """
        if self._ending and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # a daemon thread: it would not outlive the next moments anyway
        while not self._ended.empty():
            self._take(0)
        if device is not None:
            self._devices.add(device)
        reference = weakref.ref(holder, self._ended.put)  # no byte of Python runs in the finaliser
        self._held[id(reference)] = reference, address

    def forget(self) -> None:
        """Forget what was lent so far: a fork has the memory, but not XLA's threads that would let go of it."""
        self._held.clear()
        self._devices.clear()

    def _end(self) -> None:
        self._ending = True
        self.settle()

    def settle(self) -> None:
        """Block until no computation uses imported memory any more.

        What a live array or a view of it holds does no harm: that goes on the main thread. On the host it cannot be
        told from what a computation holds whose result was thrown away, but the computation keeps the processor busy.
        A device is waited for, and then says nothing more; what no live array holds must come to an end soon.
        """
        if not self._held:
            return
        _wait_for_arrays("cpu")
        deadline, quiet, any_ended = time.monotonic() + self._BOUND_S, 0, False
        while self._held and quiet < self._patience() and time.monotonic() < deadline:
            self._wait_for_devices()
            used_s = time.process_time()
            ended = self._take(self._PAUSE_S)
            any_ended |= ended
            quiet = 0 if ended or time.process_time() - used_s > self._IDLE_S else quiet + 1
        if any_ended:
            self._take(self._PAUSE_S)  # nothing comes; the thread that ended the last one leaves the interpreter

    def _wait_for_devices(self) -> None:
        if not self._devices:
            return
        _wait_for_arrays("cuda")
        with contextlib.suppress(Exception):  # a device that was lost has no work left
            from cuda.core import Device  # noqa: PLC0415 - an extra, present where there are such imports

            for index in self._devices:
                device = Device(index)
                device.set_current()
                device.sync()

    def _patience(self) -> int:
        on_devices = {address for _, address in self._held.values() if address}
        is_live = not on_devices or on_devices <= _live_addresses()
        return self._QUIET_PAUSES if is_live else self._PATIENT_PAUSES

    def _take(self, timeout_s: float) -> bool:
        try:
            self._held.pop(id(self._ended.get(timeout=timeout_s)), None)
        except queue.Empty:
            return False
        return True


def _live_arrays(platform: str) -> list[Any]:
    live_arrays: Any = jax.live_arrays  # JAX gives it no types
    with contextlib.suppress(RuntimeError):  # no such platform
        return list(live_arrays(platform))
    return []


def _wait_for_arrays(platform: str) -> None:
    for array in _live_arrays(platform):
        with contextlib.suppress(Exception):  # a computation that failed is over too
            array.block_until_ready()


def _live_addresses() -> set[int]:
    found: set[int] = set()
    for array in _live_arrays("cuda"):
        with contextlib.suppress(Exception):  # deleted meanwhile
            found.update(shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards)
    return found
