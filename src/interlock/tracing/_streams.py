"""Whose stream that is: what a program calls a stream, as a timeline of one of our devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock._core._fence import Timeline
from interlock._core._handover import StreamDevice
from interlock._core._spans import Marks
from interlock.devices import open_device
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._protocols import Device


def locate(stream: object, device: str | Device | None) -> tuple[Marks, Timeline]:
    """Return the device that `stream` belongs to, and the stream as its timeline.

    Args:
        stream: A timeline, a stream of torch, CuPy or cuda.core, or the driver's handle.
        device: Where it is, if the stream does not say it.

    Raises:
        UsageError: It is no stream, or on a device without marks.
    """
    if isinstance(stream, Timeline):
        where = device if device is not None else stream.name.rpartition("/")[0]
        if where is not device and not stream.name.startswith("cuda"):  # each is a device of its own
            raise UsageError(f"{stream!r} does not say which device it is of", hint="pass device= too")
        found = open_device(where)
        timeline: Timeline | None = stream
    else:
        handle, index = _handle(stream), _index(stream)
        where = device if device is not None else "cuda" if index is None else f"cuda:{index}"
        found = open_device(where)
        timeline = found.adopt(handle) if isinstance(found, StreamDevice) else None
    if timeline is None or not isinstance(found, Marks):
        raise UsageError(
            f"{found.name} cannot mark {stream!r}",
            why="its streams are not those of frameworks" if timeline is None else "it has no marks",
            hint="use t.span for the host's side of the work",
        )
    return found, timeline


def order_behind(value: object) -> tuple[Marks, Timeline, Callable[[], None]]:
    """Return a device, a stream of our own there, and a function that orders the stream behind the array `value`.

    Raises:
        UsageError: `value` is no array on one CUDA device, or its device has no marks.
    """
    kind, index = _dlpack_device(value)
    if kind not in _CUDA_KINDS:
        raise UsageError(
            f"the array of type {type(value).__name__!r} is not on a CUDA device", hint="on the host, use t.span"
        )
    found = open_device(f"cuda:{index}")
    if not isinstance(found, StreamDevice) or not isinstance(found, Marks):
        raise UsageError(f"{found.name} has no marks", hint="use t.span for the host's side of the work")
    stream = found.stream("arrays")
    handle = found.handle(stream)

    def order() -> None:
        value.__dlpack__(stream=handle)  # type: ignore[attr-defined] # the capsule goes at once, the order stays

    return found, stream, order


_CUDA_KINDS = (2, 13)
"""DLPack's numbers for CUDA memory, ordinary and managed."""


def _dlpack_device(value: object) -> tuple[int, int]:
    try:
        kind, index = value.__dlpack_device__()  # type: ignore[attr-defined] # asked for, not assumed
    except Exception as error:  # frameworks raise errors of their own
        raise UsageError(
            f"a value of type {type(value).__name__!r} is no array on one device",
            why=f"{type(error).__name__}: {error}",
            hint="of a sharded array give one shard's data",
        ) from error
    return int(kind), int(index)


def _handle(stream: object) -> int:
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise UsageError(
        f"{stream!r} is no stream", hint="give a stream of torch or CuPy, its handle, or one of device.stream(name)"
    )


def _index(stream: object) -> int | None:
    for name in ("device_index", "device_id"):
        index = getattr(stream, name, None)
        if isinstance(index, int) and index >= 0:
            return index
    return None
