"""The fold on events made by hand: every kind, its ordered twin, exact strides, bounded memory."""

from __future__ import annotations

import pytest

from interlock.check._hazards import Fold
from interlock.lowlevel import Access, AllocationId, Free, Handoff, HostWait, Pattern, Record, Region, Wait

HOST, COMPUTE, COPY = "host:1", "cuda:0/compute", "cuda:0/copy"
A = Region(AllocationId(1), 0, 64)


def read(timeline, region=A, line=1):
    return _access(timeline, region, "read", line)


def write(timeline, region=A, line=2):
    return _access(timeline, region, "write", line)


def _access(timeline, region, mode, line):
    issuer = HOST if "/" in timeline else ""
    return Access(timeline, region, mode, f"{mode} op", issuer=issuer, site=(("user.py", line, "f"),))


def free(timeline, allocation=1, line=9):
    return Free(
        timeline, AllocationId(allocation), issuer=HOST if "/" in timeline else "", site=(("user.py", line, "f"),)
    )


def kinds(*events):
    fold = Fold()
    for event in events:
        fold.add(event)
    return [finding.kind for finding in fold.findings]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (write(COPY), read(HOST), "early-read"),
        (read(COPY), write(HOST), "early-overwrite"),
        (write(COPY), write(HOST), "late-landing"),
        (write(COMPUTE), read(COPY), "unordered-read"),
        (read(COMPUTE), write(COPY), "unordered-write"),
        (write(COMPUTE), write(COPY), "unordered-write"),
        (read(COPY), free(COMPUTE), "freed-in-flight"),
        (write("cuda:0/collective"), read(COMPUTE), "unawaited-collective"),
        (read("cuda:0/graph"), write(COPY), "stale-graph-input"),
    ],
)
def test_two_accesses_without_order_are_a_hazard_of_their_kind_and_an_edge_silences_it(first, second, kind):
    assert kinds(first, second) == [kind]
    edge = (
        HostWait(HOST, ((first.timeline, 7),))
        if second.timeline == HOST
        else Wait(second.timeline, ((first.timeline, 7),))
    )
    assert kinds(first, Record(first.timeline, 7), edge, second) == []


def test_a_use_after_the_end_is_a_fault_even_in_order():
    graph = "cuda:0/graph"
    assert kinds(write(COMPUTE), free(COMPUTE), read(COMPUTE)) == ["freed-in-flight"]
    assert kinds(write(graph), free(graph), read(graph)) == ["stale-graph-input"]
    assert kinds(write(COMPUTE), free(COMPUTE)) == []


def test_reads_do_not_conflict_and_neither_do_disjoint_bytes_or_other_allocations():
    assert kinds(read(COPY), read(HOST), read(COMPUTE)) == []
    assert kinds(write(COPY), read(HOST, Region(AllocationId(1), 64, 8))) == []
    assert kinds(write(COPY), read(HOST, Region(AllocationId(2), 0, 64))) == []


def test_the_order_of_a_stream_is_an_order():
    assert kinds(write(COPY), read(COPY), write(COPY)) == []


def test_what_the_host_did_before_it_queued_is_ordered():
    assert kinds(write(HOST), read(COPY)) == []


def test_a_wait_orders_only_what_was_recorded_before_it():
    assert kinds(Record(COPY, 1), write(COPY), Wait(COMPUTE, ((COPY, 1),)), read(COMPUTE)) == ["unordered-read"]


def test_order_is_transitive_through_a_third_stream():
    third = "cuda:0/third"
    events = [write(COPY), Record(COPY, 1), Wait(third, ((COPY, 1),)), Record(third, 1), Wait(COMPUTE, ((third, 1),))]
    assert kinds(*events, read(COMPUTE)) == []


def test_what_the_host_has_seen_orders_every_stream_that_it_queues_on_later():
    assert kinds(write(COPY), Record(COPY, 1), HostWait(HOST, ((COPY, 1),)), read(COMPUTE)) == []


def test_host_threads_are_one_timeline():
    assert kinds(write(COPY), Record(COPY, 1), HostWait("host:2", ((COPY, 1),)), read("host:3")) == []


def test_overlapping_views_conflict_where_they_share_a_byte():
    fold = Fold()
    for event in (write(COPY, Region(AllocationId(1), 0, 40)), write(COMPUTE, Region(AllocationId(1), 32, 40))):
        fold.add(event)
    assert [finding.kind for finding in fold.findings] == ["unordered-write"]


def test_strided_views_are_judged_byte_for_byte():
    even = Region(AllocationId(1), 0, 60, Pattern(4, (8,), (8,)))
    odd = Region(AllocationId(1), 4, 60, Pattern(4, (8,), (8,)))
    columns = Region(AllocationId(1), 8, 52, Pattern(4, (4, 1), (16, 4)))
    assert kinds(write(COPY, even), write(COMPUTE, odd)) == []
    assert kinds(write(COPY, even), write(COMPUTE, columns)) == ["unordered-write"]
    assert kinds(write(COPY, even), write(COPY, odd), read(HOST, A)) == ["early-read"]


@pytest.mark.parametrize(
    ("claim", "mode", "kind"),
    [
        ("slot", "write", "recycled"),
        ("recycle", "write", "recycled"),
        ("alias", "write", "aliased-mutation"),
        ("snapshot", "write", "moving-snapshot"),
        ("donate", "read", "use-after-donate"),
        ("donate", "write", "use-after-donate"),
        ("alias", "read", None),
    ],
)
def test_a_loan_forbids_what_its_claim_says_until_it_is_returned(claim, mode, kind):
    lent = Handoff(HOST, A, "lent", "jax", 3, claim, (("user.py", 5, "f"),))
    returned = Handoff(HOST, A, "returned", "jax", 3, claim)
    access = _access(HOST, A, mode, 6)
    assert kinds(lent, access) == ([kind] if kind else [])
    assert kinds(lent, returned, access) == []


def test_the_same_pair_of_places_is_found_once_and_counted():
    fold = Fold()
    for _ in range(5):
        fold.add(write(COPY))
        fold.add(read(HOST))
    assert [(finding.kind, finding.count) for finding in fold.findings] == [("early-read", 5)]


def test_an_access_that_may_not_have_happened_may_race():
    fold = Fold()
    fold.add(write(COPY))
    fold.add(Access(HOST, A, "read", "escape", site=(("user.py", 3, "f"),), exact=False))
    assert [finding.verdict for finding in fold.findings] == ["may-race"]


def test_memory_stays_bounded_over_many_operations():
    fold = Fold()
    for step in range(30_000):
        region = Region(AllocationId(1 + step % 50), step % 7 * 8, 64)
        fold.add(write(COMPUTE, region))
        fold.add(read(COMPUTE, region))
        if step % 100 == 99:
            fold.add(Record(COMPUTE, step))
            fold.add(HostWait(HOST, ((COMPUTE, step),)))
    fold.prune()
    assert fold.findings == []
    assert sum(len(shadow) for shadow in fold._shadows.values()) <= 1000
    assert sum(len(points) for points in fold._clocks._points.values()) <= 2


def test_a_freed_allocation_is_forgotten_once_the_host_has_seen_its_end():
    fold = Fold()
    for number in range(1, 200):
        fold.add(write(COMPUTE, Region(AllocationId(number), 0, 64)))
        fold.add(free(COMPUTE, number))
    fold.add(Record(COMPUTE, 1))
    fold.add(HostWait(HOST, ((COMPUTE, 1),)))
    fold.prune()
    assert not fold._shadows
