"""The ring's edges, one by one."""

from __future__ import annotations

import pytest

from interlock.errors import LeaseError, UsageError
from interlock.lowlevel import Fence, HostTimeline, Lease, LeaseState, Ring


def pending() -> tuple[HostTimeline, Fence]:
    timeline = HostTimeline("pending")
    return timeline, Fence([(timeline, timeline.next_tick())])


def claim(ring: Ring) -> Lease:
    lease = ring.claim_nowait()
    assert lease is not None
    return lease


def lent(ring: Ring) -> Lease:
    ring.publish(claim(ring))
    lease = ring.lend_nowait()
    assert lease is not None
    return lease


def test_a_slot_goes_round_through_every_state():
    ring = Ring(1)
    timeline, fence = pending()
    lease = claim(ring)
    states = [lease.state]
    ring.publish(lease)
    states.append(lease.state)
    assert ring.lend_nowait() is lease
    states.append(lease.state)
    ring.retire(lease, fence)
    states.append(lease.state)
    assert ring.claim_nowait() is None
    timeline.reach(1)
    again = claim(ring)
    states.append(lease.state)
    assert states == list(LeaseState)[:5]
    assert (lease.slot, lease.generation, lease.sequence) == (0, 0, 0)
    assert (again.slot, again.generation, again.sequence) == (0, 1, 1)


def test_a_ring_starts_empty_and_grows_by_one_slot_when_it_has_none_free():
    ring = Ring(3)
    assert ring.statistics().slots == 0
    ring.retire(lent(ring))
    ring.retire(lent(ring))
    assert ring.statistics().slots == 1, "a slot that came back goes first"
    kept = [lent(ring) for _ in range(3)]
    assert ring.statistics().slots == 3
    assert ring.claim_nowait() is None
    ring.retire(kept[1])
    assert claim(ring).slot == kept[1].slot


def test_the_warmest_slot_goes_first():
    ring = Ring(3)
    leases = [lent(ring) for _ in range(3)]
    for lease in (leases[2], leases[0], leases[1]):
        ring.retire(lease)
        ring.collect()
    assert [claim(ring).slot for _ in range(3)] == [1, 0, 2]


def test_lending_follows_the_order_of_the_claims_whatever_was_published_first():
    ring = Ring(3)
    first, second, third = (claim(ring) for _ in range(3))
    ring.publish(third)
    ring.publish(second)
    assert ring.lend_nowait() is None
    ring.publish(first)
    assert [ring.lend_nowait() for _ in range(4)] == [first, second, third, None]


def test_a_cancelled_lease_is_skipped_in_the_order():
    ring = Ring(3)
    first, second, third = (claim(ring) for _ in range(3))
    ring.publish(first)
    ring.publish(third)
    ring.cancel(first)
    ring.cancel(second)
    assert ring.lend_nowait() is third


def test_a_lease_may_be_lent_while_its_write_is_under_way():
    ring = Ring(1)
    timeline, fence = pending()
    ring.publish(claim(ring), fence)
    lease = ring.lend_nowait()
    assert lease is not None
    assert lease.fence is fence
    assert not lease.fence.poll()
    timeline.reach(1)
    assert lease.fence.poll()


@pytest.mark.parametrize("let_go", ["retire", "cancel"])
def test_a_write_under_way_holds_the_slot_though_its_reader_has_let_go(let_go: str):
    """Else the late copy would land on the next batch."""
    ring = Ring(1)
    timeline, fence = pending()
    lease = claim(ring)
    ring.publish(lease, fence)
    if let_go == "retire":
        assert ring.lend_nowait() is lease
    getattr(ring, let_go)(lease)
    assert ring.claim_nowait() is None
    timeline.reach(1)
    assert ring.claim_nowait() is not None


def test_a_write_that_failed_before_its_reader_let_go_does_not_cost_the_slot():
    ring = Ring(1)
    ring.publish(claim(ring), Fence.failed(OSError("bad sample")))
    lease = ring.lend_nowait()
    assert lease is not None
    ring.retire(lease)
    assert ring.collect() == 1


def test_a_slot_whose_proof_failed_is_quarantined_and_replaced():
    ring = Ring(2)
    first, second = lent(ring), lent(ring)
    ring.retire(first, Fence.failed(OSError("lost")))
    assert ring.collect() == 0
    assert first.state is LeaseState.QUARANTINED
    assert claim(ring).slot not in {first.slot, second.slot}
    assert ring.claim_nowait() is None
    count = ring.statistics()
    assert (count.slots, count.quarantined, count.limit, count.returns) == (3, 1, 2, 0)


def test_statistics_count_each_state():
    ring = Ring(6)
    kept, free, retired = lent(ring), lent(ring), lent(ring)
    ring.retire(retired, pending()[1])
    claim(ring)
    ring.publish(claim(ring))
    ring.retire(free)
    assert ring.collect() == 1
    count = ring.statistics()
    assert (count.free, count.filling, count.ready, count.lent, count.retiring) == (1, 1, 1, 1, 1)
    assert (count.claims, count.returns, count.slots) == (5, 1, 5)
    assert list(ring.leases(LeaseState.LENT)) == [kept]
    assert "lent=1" in repr(ring)


def test_close_ends_claims_and_lending_and_leaves_consumers_alone():
    ring = Ring(4, name="the feed's ring")
    kept, filling = lent(ring), claim(ring)
    timeline, fence = pending()
    ready = claim(ring)
    ring.publish(ready, fence)
    ring.close()
    assert ring.closed
    with pytest.raises(LeaseError, match="the feed's ring"):
        ring.claim_nowait()
    assert ring.lend_nowait() is None
    assert (ready.state, kept.state, filling.state) == (LeaseState.RETIRING, LeaseState.LENT, LeaseState.FILLING)
    ring.publish(filling)
    ring.retire(kept)
    ring.close()
    assert ring.collect() == 2
    timeline.reach(1)
    assert ring.collect() == 1


@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("publish", {LeaseState.FILLING}),
        ("cancel", {LeaseState.FILLING, LeaseState.READY}),
        ("retire", {LeaseState.LENT}),
    ],
)
@pytest.mark.parametrize("state", list(LeaseState))
def test_a_lease_out_of_turn_is_refused_by_name_and_changes_nothing(
    verb: str, allowed: set[LeaseState], state: LeaseState
):
    ring = Ring(1)
    lease = claim(ring)
    if state is not LeaseState.FILLING:
        ring.publish(lease)
    if state not in {LeaseState.FILLING, LeaseState.READY}:
        ring.lend_nowait()
    if state in {LeaseState.RETIRING, LeaseState.ENDED}:
        ring.retire(lease)
    if state is LeaseState.QUARANTINED:
        ring.retire(lease, Fence.failed(OSError("lost")))
    if state in {LeaseState.ENDED, LeaseState.QUARANTINED}:
        ring.collect()
    assert lease.state is state
    before = ring.statistics()
    if state in allowed:
        getattr(ring, verb)(lease)
        return
    with pytest.raises(LeaseError, match=rf"cannot {verb} Lease\(#0, slot 0\.0, {state.value}\)"):
        getattr(ring, verb)(lease)
    assert ring.statistics() == before
    assert lease.state is state


def test_a_lease_of_another_ring_is_refused():
    ours, theirs = Ring(1, name="ours"), Ring(1)
    claim(ours)
    with pytest.raises(LeaseError, match="not a lease of ours"):
        ours.publish(claim(theirs))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_ring_without_slots_is_refused(limit: int):
    with pytest.raises(UsageError, match=f"{limit} slots"):
        Ring(limit)
