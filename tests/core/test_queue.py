"""A stream as a queue: in order, one at a time, and honest about what failed."""

from __future__ import annotations

from functools import partial

import pytest

from interlock.lowlevel import Fence, HostTimeline, Operation, OperationQueue


def no_progress(queue: OperationQueue, tick: int, waiting: bool) -> None:  # noqa: FBT001 - the signature of the hook
    """Stand for a device that runs nothing by itself."""


def test_ticks_count_operations_and_are_reached_in_order():
    done: list[str] = []
    queue = OperationQueue("queue", no_progress)
    ticks = [queue.put(Operation(name, partial(done.append, name))) for name in "abc"]
    assert ticks == [1, 2, 3]
    assert [operation.name for operation in queue.pending()] == ["a", "b", "c"]
    queue.run_one()
    assert done == ["a"]
    assert queue.reached(1)
    assert not queue.reached(2)
    assert (queue.done, queue.queued) == (1, 3)
    assert "done=1, queued=3" in repr(queue)


def test_an_operation_runs_when_what_it_waits_for_is_past():
    timeline, queue = HostTimeline("gate"), OperationQueue("queue", no_progress)
    queue.put(Operation("gated", None, after=Fence([(timeline, timeline.next_tick())])))
    assert not queue.can_run()
    timeline.reach(1)
    assert queue.can_run()
    queue.run_one()
    assert not queue.can_run(), "nothing is left"


def test_asking_whether_it_can_run_makes_no_other_queue_move():
    moved = []
    other = OperationQueue("other", lambda queue, *_: moved.append(queue))
    queue = OperationQueue("queue", no_progress)
    queue.put(Operation("wait", None, after=Fence([(other, other.put(Operation("work", None)))])))
    assert not queue.can_run()
    assert not moved
    assert not other.reached(1)
    assert moved == [other]


def test_progress_is_asked_for_only_while_the_tick_is_ahead():
    asked = []
    queue = OperationQueue("queue", lambda _, tick, waiting: asked.append((tick, waiting)))
    queue.put(Operation("work", None))
    queue.reached(1)
    queue.reached(1, waiting=True)
    queue.run_one()
    queue.reached(1, waiting=True)
    assert asked == [(1, False), (1, True)]


def test_an_operation_that_raises_fails_the_queue_from_there_on():
    cause, done = ValueError("bad kernel"), []

    def fail() -> None:
        raise cause

    queue = OperationQueue("queue", no_progress)
    queue.put(Operation("good", lambda: done.append("good")))
    queue.put(Operation("bad", fail))
    queue.put(Operation("late", lambda: done.append("late")))
    queue.run_one()
    queue.run_one()
    assert not queue.can_run()
    assert queue.head is None
    assert queue.failure(1) is None
    assert queue.failure(2) is queue.failure(3) is queue.failure(queue.put(Operation("later", None))) is cause
    assert queue.reached(4), "nobody waits for what never comes"
    assert done == ["good"]


def test_what_an_operation_waited_for_fails_it_without_running_it():
    cause, done = OSError("gone"), []
    queue = OperationQueue("queue", no_progress)
    queue.put(Operation("behind", lambda: done.append("ran"), after=Fence.failed(cause)))
    assert queue.can_run()
    queue.run_one()
    assert queue.failure(1) is cause
    assert not done


def test_an_interrupt_in_an_operation_reaches_the_caller_and_nothing_is_taken_for_done():
    """Else the next operation would take the interrupted one's tick, and a fence would prove a copy that never was."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    queue = OperationQueue("queue", no_progress)
    queue.put(Operation("interrupted", interrupted))
    queue.put(Operation("next", None))
    with pytest.raises(KeyboardInterrupt):
        queue.run_one()
    assert isinstance(queue.failure(1), KeyboardInterrupt)
    assert not queue.can_run()
