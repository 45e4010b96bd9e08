"""Host memory that takes part in copies, known by address: two storages over the same bytes are one allocation."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from interlock._core._events import AllocationId, new_allocation_id

if TYPE_CHECKING:
    from interlock._core._fence import Fence


@final
@dataclass(slots=True)
class Landing:
    """A copy to the host that may not have landed.

    Attributes:
        start: Address of its first byte.
        end: Address after its last byte.
        fence: Reached when it has landed.
        value: What a correct program finds there, as the framework holds it.
    """

    start: int
    end: int
    fence: Fence
    value: Any


@final
@dataclass(slots=True)
class HostBlock:
    """A range of host memory.

    Attributes:
        allocation: Its name in events.
        start: Address of its first byte.
        end: Address after its last byte.
        pinned: Whether it is page-locked, as CUDA would say.
        holders: Storages over it that live.
        landings: Copies to it that may not have landed.
        uses: Fences of everything queued on the device that touches it and may not be done.
    """

    allocation: AllocationId
    start: int
    end: int
    pinned: bool = False
    holders: int = 0
    landings: list[Landing] = field(default_factory=list)
    uses: list[Fence] = field(default_factory=list)

    def use(self, fence: Fence) -> None:
        """Remember an operation on the device that touches it."""
        self.uses = [one for one in self.uses if not _is_done(one)]
        self.uses.append(fence)

    def is_used(self) -> bool:
        """Tell whether anything queued on the device may still touch it."""
        self.uses = [one for one in self.uses if not _is_done(one)]
        return bool(self.uses)

    def settle(self) -> None:
        """Forget the copies that the schedule has let land."""
        self.landings = [one for one in self.landings if not _is_done(one.fence)]


def _is_done(fence: Fence) -> bool:
    return all(getattr(timeline, "is_past", timeline.reached)(tick) for timeline, tick in fence.points)


@final
class HostTable:
    """All host blocks, by address. Not locked: the engine's lock is held."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, HostBlock] = {}
        self.gone: deque[HostBlock] = deque()
        """Finalisers of storages append here and do nothing else."""

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, address: int) -> HostBlock | None:
        """Return the block that the address lies in."""
        self._sweep()
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        block = self._blocks[self._starts[index]]
        return block if address < block.end else None

    def add(self, start: int, size_bytes: int) -> HostBlock:
        """Make a block of an address range that has none; what it overlaps is older memory and is forgotten."""
        self._sweep()
        block = HostBlock(new_allocation_id(), start, start + size_bytes)
        index = bisect.bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] < block.end:
            del self._blocks[self._starts.pop(index)]
        self._starts.insert(index, start)
        self._blocks[start] = block
        return block

    def _sweep(self) -> None:
        while self.gone:
            block = self.gone.popleft()
            block.holders -= 1
            if block.holders == 0 and self._blocks.get(block.start) is block:
                del self._blocks[block.start]
                self._starts.remove(block.start)
