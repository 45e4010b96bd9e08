"""Waiting ends at once when the fence is reached, and within its bound if it never is."""

from __future__ import annotations

import gc
import math
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from interlock.errors import BoundError, DeviceError
from interlock.lowlevel import Event, Fence, HostTimeline, HostWait, Inbox, observe, wait

if TYPE_CHECKING:
    from collections.abc import Callable


class Polled:
    """A timeline that cannot call; it is reached when it was asked often enough."""

    name = "polled"

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def reached(self, tick: int, *, waiting: bool = False) -> bool:  # noqa: ARG002 - part of the protocol
        self.questions -= waiting
        return self.questions <= 0

    def failure(self, tick: int) -> BaseException | None:  # noqa: ARG002 - part of the protocol
        return None

    def notify(self, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - part of the protocol
        return False


class Counted:
    """A host timeline that counts the wishes that it is asked to keep."""

    def __init__(self) -> None:
        self.inner = HostTimeline("counted")
        self.name = "counted"
        self.wishes = 0

    def reached(self, tick: int, *, waiting: bool = False) -> bool:  # noqa: ARG002 - part of the protocol
        return self.inner.reached(tick)

    def failure(self, tick: int) -> BaseException | None:
        return self.inner.failure(tick)

    def notify(self, wake: Callable[[], None]) -> bool:
        self.wishes += 1
        return self.inner.notify(wake)


def pending(name: str = "host") -> tuple[HostTimeline, Fence]:
    timeline = HostTimeline(name)
    return timeline, Fence([(timeline, timeline.next_tick())])


def test_a_reached_fence_is_not_waited_for():
    wait(Fence.EMPTY, timeout_s=0, what="nothing")
    timeline, fence = pending()
    timeline.reach(1)
    wait(fence, timeout_s=0, what="the past")


def test_a_waiter_is_woken_by_the_change_and_not_by_the_bound():
    timeline, fence = pending()
    threading.Timer(0.02, timeline.reach, [1]).start()
    start = time.monotonic()
    wait(fence, timeout_s=60, what="the other thread")
    assert time.monotonic() - start < 30


def test_no_wake_up_is_lost_in_many_rounds():
    """Two threads hand a token back and forth; one lost call would stop them until the bound."""
    rounds, bound_s = 1500, 30
    ping, pong = HostTimeline("ping"), HostTimeline("pong")
    start = time.monotonic()

    def answer() -> None:
        for tick in range(1, rounds + 1):
            wait(Fence([(ping, tick)]), timeout_s=bound_s, what="ping")
            pong.reach(tick)

    other = threading.Thread(target=answer)
    other.start()
    for tick in range(1, rounds + 1):
        ping.reach(tick)
        wait(Fence([(pong, tick)]), timeout_s=bound_s, what="pong")
    other.join()
    assert time.monotonic() - start < bound_s


def test_many_waiters_of_one_fence_all_wake():
    timeline, fence = pending()
    woken: list[int] = []

    def block(number: int) -> None:
        wait(fence, timeout_s=30, what="the start")
        woken.append(number)

    threads = [threading.Thread(target=block, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    timeline.reach(1)
    for thread in threads:
        thread.join(30)
    assert sorted(woken) == list(range(8))


def test_the_bound_is_kept_and_the_message_names_what_and_how_long():
    _, fence = pending("the copy stream")
    with pytest.raises(BoundError, match=r"batch 3 is not done after 0\.01 s.*the copy stream@1") as caught:
        wait(fence, timeout_s=0.01, what="batch 3")
    assert isinstance(caught.value, TimeoutError)


def test_an_endless_bound_can_be_waited_for():
    timeline, fence = pending()
    threading.Timer(0.01, timeline.reach, [1]).start()
    wait(fence, timeout_s=math.inf, what="the other thread")


def test_a_failure_is_raised_with_its_cause():
    cause = OSError("the link broke")
    with pytest.raises(DeviceError, match="the copy of batch 3 failed: OSError: the link broke") as caught:
        wait(Fence.failed(cause), timeout_s=1, what="the copy of batch 3")
    assert caught.value.__cause__ is cause


def test_a_failure_wakes_a_waiter():
    timeline, fence = pending()
    threading.Timer(0.01, timeline.fail, [OSError("gone")]).start()
    with pytest.raises(DeviceError, match="gone"):
        wait(fence, timeout_s=60, what="the other thread")


def test_a_timeline_that_cannot_call_is_polled():
    polled = Polled(20)
    wait(Fence([(polled, 1)]), timeout_s=30, what="the polled one")
    assert polled.questions <= 0


def test_a_fence_of_both_kinds_waits_for_both():
    timeline, fence = pending()
    threading.Timer(0.02, timeline.reach, [1]).start()
    polled = Polled(5)
    wait(fence.join(Fence([(polled, 1)])), timeout_s=30, what="both")
    assert fence.poll()
    assert polled.questions <= 0


def test_a_timeline_that_does_not_move_is_asked_once_however_often_another_does():
    """Else a long wait would pile up wishes in the one that never grants them."""
    still, moving = Counted(), HostTimeline("moving")
    fence = Fence([(still, still.inner.next_tick()), (moving, 200)])

    def move() -> None:
        for tick in range(1, 201):
            moving.reach(tick)
        still.inner.reach(1)

    other = threading.Thread(target=move)
    other.start()
    wait(fence, timeout_s=30, what="both")
    other.join()
    assert still.wishes <= 1


def test_a_timeline_that_moved_but_not_far_enough_is_asked_again():
    """Else the second step of a stream would wake nobody."""

    class Stepping:
        name = "stepping"
        wishes = 0

        def reached(self, tick: int, *, waiting: bool = False) -> bool:  # noqa: ARG002 - part of the protocol
            return self.wishes >= tick

        def failure(self, tick: int) -> BaseException | None:  # noqa: ARG002 - part of the protocol
            return None

        def notify(self, wake: Callable[[], None]) -> bool:
            self.wishes += 1
            wake()
            return True

    wait(Fence([(Stepping(), 3)]), timeout_s=10, what="the third step")


def test_a_host_wait_is_told_to_observers_in_plain_values():
    seen: list[Event] = []
    remove = observe(seen.append)
    try:
        timeline, fence = pending()
        timeline.reach(1)
        wait(fence, timeout_s=1, what="the past")
        wait(Fence.EMPTY, timeout_s=1, what="nothing")
    finally:
        remove()
    (waited,) = seen
    assert isinstance(waited, HostWait)
    assert (waited.timeline, waited.points) == (f"host:{threading.get_ident()}", (("host", 1),))
    assert waited.site[0][0] == __file__


# ------------------------------------------------------------ inbox


def test_messages_come_in_the_order_in_which_they_were_left():
    inbox: Inbox[int] = Inbox()
    assert inbox.take_nowait() is None
    for number in range(3):
        inbox.post(number)
    assert [inbox.take_nowait() for _ in range(4)] == [0, 1, 2, None]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.001])
def test_an_empty_inbox_gives_up_after_the_bound(timeout_s: float):
    inbox: Inbox[int] = Inbox()
    assert inbox.wait_take(timeout_s) is None


def test_a_message_from_another_thread_ends_the_wait():
    inbox: Inbox[str] = Inbox()
    threading.Timer(0.01, inbox.post, ["hello"]).start()
    assert inbox.wait_take(math.inf) == "hello"


def test_finalisers_may_post_while_the_owner_is_inside_take():
    """The collector runs at any allocation, so also inside the queue: a lock there would hang the thread on itself."""
    inbox: Inbox[int] = Inbox()

    class Dying:
        def __init__(self, number: int) -> None:
            self.number = number
            self.itself = self  # only the collector can end this

        def __del__(self) -> None:
            inbox.post(self.number)

    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        seen = set()
        for number in range(3000):
            Dying(number)
            while (message := inbox.take_nowait()) is not None:
                seen.add(message)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    while (message := inbox.take_nowait()) is not None:
        seen.add(message)
    assert seen == set(range(3000))


def test_a_signal_that_did_not_end_the_sleep_is_seen_soon():
    """The interpreter notes a signal on whatever thread it comes; only the main thread, once awake, calls handlers."""
    inbox: Inbox[str] = Inbox()
    before = signal.signal(signal.SIGUSR1, lambda number, _: inbox.post(signal.Signals(number).name))
    main = threading.get_ident()

    def signal_here():
        while sys._current_frames()[main].f_code.co_name != "wait_take":
            time.sleep(0.001)
        signal.raise_signal(signal.SIGUSR1)

    thread = threading.Thread(target=signal_here)
    try:
        thread.start()
        assert inbox.wait_take(10.0) == "SIGUSR1"
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
