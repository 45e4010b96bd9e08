"""Checksums and poison: what `verify=True` is made of.

A checksum must be fast enough to be taken of every batch, and must see a shift, a swap of rows and a single stale word.
CRC-32 does: it depends on the place of each bit, sees every burst of up to 32 wrong bits, and misses anything else once
in four thousand million. The standard library's runs at about 4 GB/s and lets other threads run meanwhile. A sum of
words, weighted by place or not, is no faster than memory either and sees less. It is taken of parts, so that a message
can say which bytes are wrong.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, TypeAlias, final

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._sites import here

if TYPE_CHECKING:
    from interlock._core._fence import Timeline
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Memory

Sums: TypeAlias = tuple[int, ...]
"""One checksum for each part of some bytes, in order."""

_PART_BYTES = 64 << 10
_POISON = b"\xff"
_AREA_BYTES = 1 << 20


def sums_of(data: memoryview) -> Sums:
    """Return the checksums of C-contiguous bytes."""
    view = data.cast("B")
    return tuple(zlib.crc32(view[start : start + _PART_BYTES]) for start in range(0, len(view), _PART_BYTES))


def difference(wanted: Sums, found: Sums, data: memoryview, given: str) -> str:
    """Say where bytes that are wrong differ from those that were given, and what they hold in their place.

    Args:
        wanted: The checksums that were taken.
        found: Others: those of `data`.
        data: The bytes.
        given: What those that were taken are of, as "what was put".
    """
    view = data.cast("B")
    if len(wanted) != len(found):
        return f"it has {len(view):,} bytes, not those of {given}"
    wrong = [part for part, (one, other) in enumerate(zip(wanted, found, strict=True)) if one != other]
    first, last = wrong[0] * _PART_BYTES, min((wrong[-1] + 1) * _PART_BYTES, len(view))
    parts = [bytes(view[part * _PART_BYTES : (part + 1) * _PART_BYTES]) for part in wrong]
    held = ""
    if all(part.count(_POISON) == len(part) for part in parts):
        held = ", and hold 0xFF: they were read before they were written, or after their slot was taken back"
    elif not any(any(part) for part in parts):
        held = ", and hold zeros"
    return f"{len(wrong)} of {len(found)} parts differ from {given}, in bytes {first:,} to {last:,}{held}"


@final
class Poison:
    """Overwrites slots that came back, so that whoever still reads one sees it: NaN as a float, -1 as an integer.

    Args:
        device: Whose slots.
        stream: Stream of the device on which slots are written, so that the next value comes after the poison.
    """

    def __init__(self, device: Device, stream: Timeline) -> None:
        self._device = device
        self._stream = stream
        self._area: Memory | None = None

    def spread(self, slot: SlotMemory) -> None:
        """Overwrite both sides of a slot. Only once the ring has proof that nobody uses it.

        Ordering: the host side at once; the device side in the order of the stream. The host does not wait.
        """
        if observed():
            emit(Access(host_timeline(), slot.staging.region, "write", "poison", site=here()))
        _fill(slot.staging)
        if slot.device is slot.staging:
            return
        if self._area is None:
            self._area = self._device.allocate_host(_AREA_BYTES)
            _fill(self._area)
        size = slot.device.size_bytes
        for start in range(0, size, _AREA_BYTES):
            count = min(_AREA_BYTES, size - start)
            self._device.copy(slot.device.slice(start, count), self._area.slice(0, count), self._stream)


def _fill(memory: Memory) -> None:
    view = memory.view().cast("B")
    block = _POISON * min(_AREA_BYTES, len(view))
    for start in range(0, len(view), _AREA_BYTES):
        view[start : start + _AREA_BYTES] = block[: len(view) - start]
