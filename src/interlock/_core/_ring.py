"""The ring: which slot may be written, read or reused, as arithmetic that never blocks.

``FREE -> FILLING -> READY(fence) -> LENT -> RETIRING(fence) -> FREE``. Claims are numbered; consumers get leases in
that order, while slots come back in any order, since a consumer may keep one batch and drop the next. A slot is free
again only by the fence of its retirement, never by counting. The ring starts without slots and adds one when it has
none free, up to its limit: so a batch that a consumer keeps takes its slot out of circulation and nobody stops.

A ring belongs to one thread at a time; what other threads or finalisers have to say reaches its owner through an inbox
(`interlock._waiting.Inbox`). So there is no lock here, and the whole thing can be model-checked.

Source: LMAX Disruptor's sequencer (claim and publish as arithmetic, waiting elsewhere).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock._core._fence import Fence
from interlock._core._lease import Lease, LeaseState, SlotIndex
from interlock.errors import LeaseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """How many slots are in each state now, and what happened since the start.

    Attributes:
        slots: Slots made so far.
        limit: Most slots that are not quarantined.
        quarantined: Slots whose retirement failed; they are never used again.
        claims: Leases given to producers since the start.
        returns: Slots that came back since the start.
    """

    slots: int
    limit: int
    free: int
    filling: int
    ready: int
    lent: int
    retiring: int
    quarantined: int
    claims: int
    returns: int


@final
class Ring:
    """Slots and their leases.

    Args:
        limit: Most slots in circulation at once. A quarantined slot is out of circulation and may be replaced.
        name: Shown in messages.

    Raises:
        UsageError: `limit` is not positive.
    """

    def __init__(self, limit: int, *, name: str = "ring") -> None:
        if limit < 1:
            raise UsageError(f"{name} cannot have {limit} slots", hint="give it at least one")
        self.name = name
        self.limit = limit
        self._generations: list[int] = []
        self._free: list[SlotIndex] = []
        self._open: dict[int, Lease] = {}
        self._lend_order: deque[Lease] = deque()
        self._retiring: list[Lease] = []
        self._quarantined = 0
        self._claims = 0
        self._returns = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"Ring({self.name!r}, {self.statistics()})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def free(self) -> tuple[SlotIndex, ...]:
        """Slots that nobody uses, as far as is known."""
        return tuple(self._free)

    def leases(self, state: LeaseState) -> Iterator[Lease]:
        """Iterate over the open leases in `state`, oldest first."""
        return (lease for lease in self._open.values() if lease.state is state)

    def claim_nowait(self) -> Lease | None:
        """Take a free slot for writing.

        Returns:
            A lease in FILLING, or None if every slot is in use and the limit is reached. The warmest slot (the one that
            came back last) goes first.

        Raises:
            LeaseError: The ring is closed.

        Ordering:
            Whoever read the slot before is done: the fence of its last retirement was reached.
        """
        if self._closed:
            raise LeaseError(f"cannot claim a slot of {self.name}", why="it is closed")
        if not self._free:
            self.collect()
        if not self._free:
            if len(self._generations) - self._quarantined >= self.limit:
                return None
            self._free.append(SlotIndex(len(self._generations)))
            self._generations.append(-1)
        slot = self._free.pop()
        self._generations[slot] += 1
        lease = Lease(slot, self._generations[slot], self._claims)
        self._claims += 1
        self._open[lease.sequence] = lease
        self._lend_order.append(lease)
        return lease

    def publish(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        """Say that the slot is written once `fence` is reached. Leases may be published in any order.

        After `close` nobody will read it: then the slot retires behind the same fence.
        """
        self._own(lease, (LeaseState.FILLING,), "publish")
        self._move(lease, LeaseState.READY, fence)
        if self._closed:
            self._skip(lease, fence)

    def cancel(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        """Give back a slot that nobody will read; `fence` says when its producer has let go of it.

        Ordering:
            As in `retire`.
        """
        self._own(lease, (LeaseState.FILLING, LeaseState.READY), "cancel")
        self._skip(lease, fence)

    def lend_nowait(self) -> Lease | None:
        """Hand the next lease in order to its consumer.

        Returns:
            The lease, now LENT, or None if the next one is not published yet. Its `fence` may be pending or failed: the
            consumer's reads must come after it.
        """
        if not self._lend_order or self._lend_order[0].state is not LeaseState.READY:
            return None
        lease = self._lend_order.popleft()
        self._move(lease, LeaseState.LENT)
        return lease

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        """Take a lease back from its consumer, who is done once `fence` is reached.

        Ordering:
            A write that is still under way (the fence of `publish`) holds the slot too: a consumer that lets go early
            does not end it.
        """
        self._own(lease, (LeaseState.LENT,), "retire")
        self._retire(lease, fence)

    def collect(self) -> int:
        """Free every slot whose retirement is proved; return how many. One whose proof failed is quarantined."""
        still: list[Lease] = []
        freed = 0
        for lease in self._retiring:
            if not lease.fence.poll():
                still.append(lease)
                continue
            del self._open[lease.sequence]
            if lease.fence.failure() is None:
                self._move(lease, LeaseState.ENDED)
                self._free.append(lease.slot)
                freed += 1
            else:
                self._move(lease, LeaseState.QUARANTINED)
                self._quarantined += 1
        self._retiring = still
        self._returns += freed
        return freed

    def close(self) -> None:
        """End claiming and lending. What was READY retires behind its fence; what is LENT stays with its consumer."""
        self._closed = True
        for lease in [lease for lease in self._lend_order if lease.state is LeaseState.READY]:
            self._skip(lease, lease.fence)

    def statistics(self) -> RingStatistics:
        """Count the slots by state."""
        counts = dict.fromkeys(LeaseState, 0)
        for lease in list(self._open.values()):  # at once: other threads ask for statistics too
            counts[lease.state] += 1
        return RingStatistics(
            slots=len(self._generations),
            limit=self.limit,
            free=len(self._free),
            filling=counts[LeaseState.FILLING],
            ready=counts[LeaseState.READY],
            lent=counts[LeaseState.LENT],
            retiring=counts[LeaseState.RETIRING],
            quarantined=self._quarantined,
            claims=self._claims,
            returns=self._returns,
        )

    def _skip(self, lease: Lease, fence: Fence) -> None:
        self._lend_order.remove(lease)
        self._retire(lease, fence)

    def _retire(self, lease: Lease, fence: Fence) -> None:
        written = lease.fence
        self._move(lease, LeaseState.RETIRING, fence if written.poll() else written.join(fence))
        self._retiring.append(lease)

    @staticmethod
    def _move(lease: Lease, state: LeaseState, fence: Fence | None = None) -> None:
        lease._move(state, fence)  # noqa: SLF001 - rings, and nobody else, move leases on

    def _own(self, lease: Lease, states: tuple[LeaseState, ...], verb: str) -> None:
        lease._require(states, verb)  # noqa: SLF001 - as in `_move`
        if self._open.get(lease.sequence) is not lease:
            raise LeaseError(f"cannot {verb} {lease!r}", why=f"it is not a lease of {self.name}")
