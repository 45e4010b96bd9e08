"""Fences are a small algebra: joined by maximum, with failure as a state."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.lowlevel import Fence, HostTimeline, Timeline

TIMELINES = [HostTimeline(f"timeline:{number}") for number in range(4)]

FENCES = st.lists(st.tuples(st.sampled_from(TIMELINES), st.integers(min_value=0, max_value=9)), max_size=6).map(Fence)

PROPERTY = settings(derandomize=True, database=None, deadline=None)


def meaning(fence: Fence) -> dict[str, int]:
    """What a fence says, whatever the order in which it says it."""
    return dict(fence.plain())


@PROPERTY
@given(FENCES, FENCES)
def test_join_takes_the_later_tick_of_each_timeline(one: Fence, other: Fence):
    mine, theirs = meaning(one), meaning(other)
    latest = {name: max(mine.get(name, -1), theirs.get(name, -1)) for name in mine.keys() | theirs.keys()}
    assert meaning(one.join(other)) == latest
    assert len(one.join(other).points) == len(latest), "each timeline once"


@PROPERTY
@given(FENCES, FENCES, FENCES)
def test_join_is_commutative_associative_and_idempotent(one: Fence, two: Fence, three: Fence):
    assert meaning(one.join(two)) == meaning(two.join(one))
    assert meaning(one.join(two).join(three)) == meaning(one.join(two.join(three))) == meaning(one.join(two, three))
    assert meaning(one.join(one)) == meaning(one)


@PROPERTY
@given(FENCES)
def test_the_empty_fence_changes_nothing_and_needs_no_wait(fence: Fence):
    assert meaning(fence.join(Fence.EMPTY)) == meaning(Fence.EMPTY.join(fence)) == meaning(fence)
    assert fence.join() is fence
    assert Fence.EMPTY.poll()
    assert Fence.EMPTY.failure() is None


@PROPERTY
@given(FENCES, FENCES, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6))
def test_a_joined_fence_is_reached_exactly_when_all_its_parts_are(
    one: Fence, other: Fence, progress: list[tuple[int, int]]
):
    fresh = [HostTimeline(timeline.name) for timeline in TIMELINES]
    number = {timeline.name: timeline for timeline in fresh}
    parts = [Fence([(number[name], tick) for name, tick in fence.plain()]) for fence in (one, other)]
    joined = parts[0].join(parts[1])
    for which, tick in progress:
        fresh[which].reach(tick)
        assert joined.poll() == (parts[0].poll() and parts[1].poll())


def test_two_timelines_of_one_name_are_two():
    first, second = HostTimeline("same"), HostTimeline("same")
    fence = Fence([(first, first.next_tick()), (second, second.next_tick())])
    first.reach(1)
    assert not fence.poll()
    second.reach(1)
    assert fence.poll()


def test_a_fence_prints_its_points():
    timeline = HostTimeline("copy")
    assert repr(Fence([(timeline, 3)])) == "Fence(copy@3)"
    assert repr(timeline) == "HostTimeline('copy', reached=0, next=0)"


# ------------------------------------------------------------ host timelines


def test_ticks_are_given_out_once_and_reached_in_order():
    timeline = HostTimeline("host")
    first, second = timeline.next_tick(), timeline.next_tick()
    assert first < second
    assert not timeline.reached(first)
    timeline.reach(second)
    assert timeline.reached(first)
    timeline.reach(first)
    assert timeline.reached(second), "going back does nothing"


def test_many_threads_get_different_ticks():
    timeline, found = HostTimeline("host"), []

    def take() -> None:
        found.extend([timeline.next_tick() for _ in range(500)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 2001))


def test_each_wish_to_be_called_is_granted_once_at_the_next_change():
    timeline = HostTimeline("host")
    calls: list[str] = []
    assert timeline.notify(lambda: calls.append("one"))
    assert timeline.notify(lambda: calls.append("two"))
    timeline.reach(timeline.next_tick())
    timeline.reach(timeline.next_tick())
    assert calls == ["one", "two"]
    timeline.notify(lambda: calls.append("three"))
    timeline.fail(OSError())
    assert calls == ["one", "two", "three"]


def test_a_wish_may_be_renewed_from_within_the_call():
    timeline = HostTimeline("host")
    calls: list[int] = []

    def wake() -> None:
        calls.append(len(calls))
        timeline.notify(wake)

    timeline.notify(wake)
    for _ in range(3):
        timeline.reach(timeline.next_tick())
    assert calls == [0, 1, 2]


def test_a_host_timeline_is_a_timeline():
    assert isinstance(HostTimeline("host"), Timeline)


# ------------------------------------------------------------ failure


def test_a_failure_ends_what_was_not_reached_and_leaves_the_rest():
    timeline, cause = HostTimeline("host"), OSError("gone")
    before, after = Fence([(timeline, timeline.next_tick())]), Fence([(timeline, timeline.next_tick())])
    timeline.reach(1)
    timeline.fail(cause)
    assert before.poll()
    assert before.failure() is None
    assert after.poll(), "a failed fence keeps nobody waiting"
    assert after.failure() is cause


def test_the_first_cause_stays():
    timeline, cause = HostTimeline("host"), OSError("first")
    timeline.fail(cause)
    timeline.fail(ValueError("second"))
    assert timeline.failure(timeline.next_tick()) is cause


def test_what_failed_stays_failed_whatever_is_said_later():
    """A waiter that saw the failure and one that comes later must hear the same."""
    timeline, cause = HostTimeline("host"), OSError("gone")
    tick = timeline.next_tick()
    timeline.fail(cause)
    timeline.reach(tick)
    assert timeline.failure(tick) is cause


def test_a_joined_fence_fails_with_the_cause_of_its_failed_part():
    healthy, broken, cause = HostTimeline("healthy"), HostTimeline("broken"), OSError("gone")
    fence = Fence([(healthy, healthy.next_tick())]).join(Fence([(broken, broken.next_tick())]))
    broken.fail(cause)
    assert fence.failure() is cause
    assert not fence.poll(), "the healthy part may still touch the memory"
    healthy.reach(1)
    assert fence.poll()


def test_a_fence_may_be_made_failed():
    cause = OSError("gone")
    one, other = Fence.failed(cause), Fence.failed(cause)
    assert one.poll()
    assert one.failure() is cause
    assert len(meaning(one.join(other))) == 2, "each has a name of its own"


@pytest.mark.parametrize("waiting", [False, True])
def test_every_timeline_of_a_fence_hears_that_it_is_waited_for(waiting: bool):  # noqa: FBT001 - parametrised
    heard = []

    class Listening:
        name = "listening"

        def reached(self, tick: int, *, waiting: bool = False) -> bool:
            heard.append((tick, waiting))
            return False

        def failure(self, tick: int) -> BaseException | None:  # noqa: ARG002 - part of the protocol
            return None

        def notify(self, wake) -> bool:  # noqa: ARG002 - part of the protocol
            return False

    assert not Fence([(Listening(), 1), (Listening(), 2)]).poll(waiting=waiting)
    assert heard == [(1, waiting), (2, waiting)]
