"""`verify=True`: what the writer gets is compared with what was put, and slots that came back are poisoned."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._fence import Fence
from interlock._core._pool import SlotMemory
from interlock._core._sums import Poison, Sums, difference, sums_of
from interlock._waiting import wait
from interlock.drain._blocks import blocks_of, landed_of, size_of
from interlock.drain._leaves import empty_of
from interlock.drain._ragged import bytes_of
from interlock.errors import CorruptionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._protocols import Device, DeviceArray, Memory, Pieces
    from interlock._core._rows import Rows
    from interlock.drain._jobs import RowsJob
    from interlock.drain._leaves import Part
    from interlock.drain._outputs import AnyLeaf


def sums_at_put(leaves: Sequence[AnyLeaf], start: int, stop: int, timeout_s: float) -> dict[str, Sums]:
    """Return the checksums of rows `start` to `stop` of what is put, read by a way that no value takes to the writer.

    A framework's array is read by the framework itself, not from the snapshot; memory that no framework holds is copied
    on a stream of its own.

    Ordering: in the order of the producer's stream, as the snapshot.

    Blocks: until the rows are on the host.
    """
    sums = {}
    for leaf in leaves:
        readers = {part.key: partial(_read, part, timeout_s) for part in leaf.parts(start, stop)}
        sums[leaf.name] = sums_of(bytes_of(leaf.reader(readers, start, stop)()))
    return sums


def check(job: RowsJob, columns: Mapping[str, Rows], when: str) -> None:
    """Compare the rows that a sink gets with those that were put, if their checksums were taken.

    Raises:
        CorruptionError: A column is not what was put.
    """
    for name, wanted in job.sums.items():
        data = bytes_of(columns[name])
        found = sums_of(data)
        if found != wanted:
            first, last = job.ids[0], job.ids[-1]
            raise CorruptionError(
                f"output {name!r} of put {job.number} (rows {first!s} to {last!s}) was wrong {when}",
                number=job.number,
                leaf=name,
                why=difference(wanted, found, data, "what was put"),
                hint="with borrow=True nothing may write to an array that was put; else please report this",
            )


@final
class Poisoner:
    """Poisons the slots of one device when the writer is done with them.

    Args:
        device: Whose slots.
        timeout_s: Bound on the wait for it.
    """

    def __init__(self, device: Device, timeout_s: float) -> None:
        self._device = device
        self._stream = device.stream("drain poison")
        self._poison = Poison(device, self._stream)
        self._timeout_s = timeout_s

    def spread(self, memory: SlotMemory, mirror: Memory | None) -> None:
        """Overwrite a slot, and its mirror on the device if it has one.

        Blocks: until that is done, because the next snapshot may be taken on any stream.
        """
        self._poison.spread(memory if mirror is None else SlotMemory(memory.staging, mirror))
        wait(self._device.record(self._stream), timeout_s=self._timeout_s, what="the poisoning of a slot")


def _read(part: Part, timeout_s: float) -> npt.NDArray[Any]:
    """Return the rows of a part on the host; their bytes where the framework returns no more."""
    framework, value = part.leaf.given
    if framework is None:
        return _copied(value, timeout_s)[part.start : part.stop]
    rows = value if part.start == 0 and part.stop == part.leaf.rows else value[part.start : part.stop]
    held = framework.read_back(rows)
    if held is None:
        raise UsageError(f"output {part.leaf.name!r} was deleted", hint="put it before it is donated")
    if tuple(held.shape) == tuple(rows.shape):
        return held
    if part.is_told:
        return held.view(np.dtype(part.leaf.value.dtype))  # what was found on a device has NumPy's name
    itemsize = int(value.dtype.itemsize)
    return held.reshape(*rows.shape, itemsize) if held.size else np.empty((*rows.shape, itemsize), np.uint8)


def _copied(value: DeviceArray | Pieces, timeout_s: float) -> npt.NDArray[Any]:
    """Return a copy of memory on devices, as its producer's streams leave it."""
    if not size_of(value):
        return empty_of(value)()
    blocks = blocks_of(value)
    host = blocks[0].array.device.allocate_host(size_of(value))
    copies = Fence.EMPTY
    for block in blocks:
        device = block.array.device
        stream = device.stream("drain verify")
        device.wait(stream, _now(device, block.array.ready))
        target = host.slice(block.offset_bytes, block.size_bytes)
        device.copy(target, block.array.memory.slice(0, block.size_bytes), stream)
        copies = copies.join(device.record(stream))
    wait(copies, timeout_s=timeout_s, what="the second look at a put")
    return landed_of(value).read(host.view(), 0)


def _now(device: Device, ready: Fence) -> Fence:
    """Return the fence behind everything that is queued now on those streams of `device` that `ready` names."""
    fence = ready
    for timeline, _ in ready.points:
        try:
            fence = fence.join(device.record(timeline))
        except UsageError:  # another device's
            continue
    return fence
