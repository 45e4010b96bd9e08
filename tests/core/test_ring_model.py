"""The ring keeps its promises against everything a state machine can think of; rings that break them are caught."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from interlock.errors import LeaseError
from interlock.lowlevel import Fence, Lease, Ring, RingStatistics
from interlock.testing import RingMachine

THOROUGH = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_the_ring_keeps_its_promises():
    run_state_machine_as_test(RingMachine, settings=THOROUGH)


class Wrapped:
    """A ring that passes everything on; the broken ones below change one thing each."""

    def __init__(self, limit: int) -> None:
        self.ring = Ring(limit)
        self.held: deque[Lease] = deque()

    def claim_nowait(self) -> Lease | None:
        return self.ring.claim_nowait()

    def publish(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.ring.publish(lease, fence)

    def cancel(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.ring.cancel(lease, fence)

    def lend_nowait(self) -> Lease | None:
        return self.ring.lend_nowait()

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.ring.retire(lease, fence)

    def collect(self) -> int:
        return self.ring.collect()

    def close(self) -> None:
        self.ring.close()

    def statistics(self) -> RingStatistics:
        return self.ring.statistics()

    def let_go(self, lease: Lease) -> None:
        if lease not in self.held:
            raise LeaseError(f"{lease} is not lent")
        self.held.remove(lease)


class RetiresAtHandOver(Wrapped):
    """The corrupted feed: the slot goes back as soon as the consumer has the batch."""

    def lend_nowait(self) -> Lease | None:
        lease = self.ring.lend_nowait()
        if lease is not None:
            self.held.append(lease)
            self.ring.retire(lease)
        return lease

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:  # noqa: ARG002 - that is the bug
        self.let_go(lease)


class CountsInsteadOfProving(Wrapped):
    """Keeps the last two batches, and takes the one before for done."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.lent: deque[Lease] = deque()

    def lend_nowait(self) -> Lease | None:
        lease = self.ring.lend_nowait()
        if lease is not None:
            self.held.append(lease)
            self.lent.append(lease)
            if len(self.lent) > 2:
                self.ring.retire(self.lent.popleft())
        return lease

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.let_go(lease)
        if lease in self.lent:
            self.lent.remove(lease)
            self.ring.retire(lease, fence)


class ForgetsTheFence(Wrapped):
    """Takes `retire` for the proof and does not wait for the consumer's device."""

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:  # noqa: ARG002 - that is the bug
        self.ring.retire(lease)


class ForgetsTheWriter(Wrapped):
    """Frees a cancelled slot although a write that was published for it may still land."""

    def publish(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.ring.publish(lease, fence if fence.poll() else Fence.EMPTY)


class LosesSlots(Wrapped):
    """Never looks at what came back."""

    def retire(self, lease: Lease, fence: Fence = Fence.EMPTY) -> None:
        self.ring.retire(lease, fence.join(Fence.failed(OSError("lost"))) if not fence.poll() else fence)

    def collect(self) -> int:
        return 0


STILL_IN_USE = "may still (use its slot|be in use)"


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (RetiresAtHandOver, STILL_IN_USE),
        (CountsInsteadOfProving, STILL_IN_USE),
        (ForgetsTheFence, STILL_IN_USE),
        (ForgetsTheWriter, STILL_IN_USE),
        (LosesSlots, "did not come back"),
    ],
)
def test_a_broken_ring_is_caught(broken: type[Wrapped], found: str):
    class Machine(RingMachine):
        def make_ring(self, limit: int) -> Wrapped:
            return broken(limit)

    with pytest.raises(AssertionError, match=found):
        run_state_machine_as_test(Machine, settings=settings(THOROUGH, max_examples=1000, phases=(Phase.generate,)))
