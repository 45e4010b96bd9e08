"""What is known of each byte: its last writes, and its reads since, as an interval map per allocation."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from interlock._core._events import Region

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import Access, AllocationId, Free
    from interlock.check._clocks import Epoch

_MOST_PARTIAL = 32
"""Strided writes remembered for a segment; more are very rarely all unordered."""
_MOST_MASK_BYTES = 64 << 20
"""Two strided views are compared byte by byte up to this span; above it they are taken to overlap."""


@final
@dataclass(slots=True, eq=False)
class Entry:
    """One access as the shadow remembers it. Never changed; not frozen, since one is made for every operation.

    Attributes:
        is_write: Whether it changed the bytes, or allowed others to.
    """

    epoch: Epoch
    event: Access | Free
    region: Region
    is_write: bool


@dataclass(slots=True)
class _Segment:
    """Bytes `start` to `end` with one history."""

    start: int
    end: int
    writes: list[Entry] = field(default_factory=list)
    reads: dict[str, Entry] = field(default_factory=dict)

    def split(self, at: int) -> _Segment:
        """Cut at a byte; return the later part."""
        later = _Segment(at, self.end, list(self.writes), dict(self.reads))
        self.end = at
        return later

    def earlier(self, entry: Entry) -> list[Entry]:
        """Return what was done to these bytes on other timelines and may conflict with `entry`."""
        own = entry.epoch.timeline
        if len(self.writes) == 1 and self.writes[0].epoch.timeline == own and self.reads.keys() <= {own}:
            return []  # one stream goes on alone, as mostly
        found = [one for one in self.writes if one.epoch.timeline != own]
        if entry.is_write:
            found += [one for one in self.reads.values() if one.epoch.timeline != own]
        return found

    def remember(self, entry: Entry) -> None:
        """Put an access into the history."""
        if not entry.is_write:
            self.reads[entry.epoch.timeline] = entry
        elif _is_dense(entry.region):
            self.writes = [entry]
            self.reads = {}
        else:  # touches some of the bytes: what was there before stays in the history of the others
            self.writes = [*self.writes[-_MOST_PARTIAL:], entry]


@final
class Shadow:
    """Histories of all bytes of one allocation.

    Source: FastTrack (last write, and one read per timeline); an interval map, as ranges of bytes overlap in any way.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[_Segment] = []

    def access(self, entry: Entry) -> list[Entry]:
        """Put an access into the history; return the earlier ones of other timelines that it may conflict with.

        Two accesses may conflict if they share a byte and one of them is a write. Whether they are ordered is the
        caller's question.
        """
        start = entry.region.offset_bytes
        end = start + entry.region.size_bytes
        index = bisect.bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start and self._segments[index].end == end:
            segment = self._segments[index]  # the same bytes as before, as mostly
            earlier = segment.earlier(entry)
            segment.remember(entry)
        else:
            found: dict[int, Entry] = {}
            for segment in self._cover(start, end):
                found.update((id(one), one) for one in segment.earlier(entry))
                segment.remember(entry)
            earlier = list(found.values())
        return [one for one in earlier if _share_bytes(one.region, entry.region)] if earlier else earlier

    def span(self, allocation: AllocationId) -> Region:
        """Return all bytes that have a history."""
        if not self._segments:
            return Region(allocation, 0, 0)
        start = self._segments[0].start
        return Region(allocation, start, self._segments[-1].end - start)

    def _cover(self, start: int, end: int) -> list[_Segment]:
        """Return segments that cover exactly the bytes `start` to `end`, splitting and adding as needed."""
        if start >= end:
            return []
        self._split(start)
        self._split(end)
        index = bisect.bisect_left(self._starts, start)
        covered: list[_Segment] = []
        at = start
        while at < end:
            if index < len(self._segments) and self._segments[index].start == at:
                segment = self._segments[index]
            else:
                following = self._starts[index] if index < len(self._starts) else end
                segment = _Segment(at, min(end, following))
                self._insert(index, segment)
            covered.append(segment)
            at = segment.end
            index += 1
        return covered

    def _split(self, at: int) -> None:
        index = bisect.bisect_left(self._starts, at) - 1
        if index >= 0 and self._segments[index].start < at < self._segments[index].end:
            self._insert(index + 1, self._segments[index].split(at))

    def _insert(self, index: int, segment: _Segment) -> None:
        self._segments.insert(index, segment)
        self._starts.insert(index, segment.start)

    def prune(self, is_settled: Callable[[Entry], bool]) -> None:
        """Forget accesses that nothing to come can conflict with, and join segments that are alike then."""
        kept: list[_Segment] = []
        for segment in self._segments:
            segment.writes = [entry for entry in segment.writes if not is_settled(entry)]
            segment.reads = {name: entry for name, entry in segment.reads.items() if not is_settled(entry)}
            if not segment.writes and not segment.reads:
                continue
            last = kept[-1] if kept else None
            if last and last.end == segment.start and (last.writes, last.reads) == (segment.writes, segment.reads):
                last.end = segment.end
            else:
                kept.append(segment)
        self._segments = kept
        self._starts = [segment.start for segment in kept]

    def __len__(self) -> int:
        return len(self._segments)


def _is_dense(region: Region) -> bool:
    """Tell whether a region touches all of its bytes, as a transposed view does."""
    pattern = region.pattern
    return pattern is None or pattern.itemsize * math.prod(pattern.shape) == region.size_bytes


def _share_bytes(one: Region, other: Region) -> bool:
    """Tell whether two regions that overlap as ranges share a byte that both touch."""
    if _is_dense(one) and _is_dense(other):
        return True
    start = max(one.offset_bytes, other.offset_bytes)
    end = min(one.offset_bytes + one.size_bytes, other.offset_bytes + other.size_bytes)
    if end - start > _MOST_MASK_BYTES:
        return True
    return bool((_mask(one, start, end) & _mask(other, start, end)).any())


def _mask(region: Region, start: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which of the bytes `start` to `end` of the allocation a region touches."""
    mask = np.zeros(end - start, np.bool_)
    pattern = region.pattern
    if pattern is None:
        mask[:] = True
        return mask
    offsets = np.zeros(1, np.int64)
    for length, stride in zip(pattern.shape, pattern.strides_bytes, strict=True):
        offsets = (offsets[:, None] + np.arange(length, dtype=np.int64) * stride).reshape(-1)
    first = offsets + region.offset_bytes - start
    for byte in range(pattern.itemsize):
        touched = first + byte
        mask[touched[(touched >= 0) & (touched < len(mask))]] = True
    return mask
