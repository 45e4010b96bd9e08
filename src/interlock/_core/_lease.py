"""The lease: the right to use one slot, from claim to the proof that the slot may be written again."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NewType, final

from interlock._core._fence import Fence
from interlock.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Iterable

SlotIndex = NewType("SlotIndex", int)
"""Which slot of its ring; dense from 0."""


class LeaseState(enum.Enum):
    """Where a lease stands. A slot is FREE while no lease on it is open."""

    FILLING = "filling"
    """A producer may write."""
    READY = "ready"
    """Written once the fence is reached; nobody reads yet."""
    LENT = "lent"
    """A consumer may read, and nobody writes."""
    RETIRING = "retiring"
    """The consumer is done once the fence is reached."""
    ENDED = "ended"
    """The slot is free again; the lease is worth nothing."""
    QUARANTINED = "quarantined"
    """The proof failed, so the slot is never used again."""


@final
class Lease:
    """The right to use a slot until a fence. Only a `Ring` makes leases and moves them on.

    Attributes:
        slot: Which slot.
        generation: How many times the slot was claimed before.
        sequence: Position in the ring's order; consumers get leases in this order.
    """

    __slots__ = ("__weakref__", "_fence", "_state", "generation", "sequence", "slot")

    def __init__(self, slot: SlotIndex, generation: int, sequence: int) -> None:
        self.slot = slot
        self.generation = generation
        self.sequence = sequence
        self._state = LeaseState.FILLING
        self._fence = Fence.EMPTY

    def __repr__(self) -> str:
        return f"Lease(#{self.sequence}, slot {self.slot}.{self.generation}, {self._state.value})"

    @property
    def state(self) -> LeaseState:
        """Where the lease stands now."""
        return self._state

    @property
    def fence(self) -> Fence:
        """In READY: when the bytes are written. In RETIRING: when the consumer is done. Else the last one set."""
        return self._fence

    def _require(self, states: Iterable[LeaseState], verb: str) -> None:
        if self._state not in states:
            wanted = " or ".join(state.value for state in states)
            raise LeaseError(
                f"cannot {verb} {self!r}",
                why=f"that needs a lease that is {wanted}",
                hint="a lease moves on once: use the one that the ring returned last",
            )

    def _move(self, state: LeaseState, fence: Fence | None = None) -> None:
        self._state = state
        if fence is not None:
            self._fence = fence
