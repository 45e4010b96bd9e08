"""The thread that makes calls with landed values: its bounds, its errors, its end."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from interlock.errors import BoundError, DeviceError, SinkError
from interlock.integrations._calls import Calls
from interlock.integrations._torch_trees import Tree, map_leaves

CPU = torch.device("cpu")


def tree(value):
    return Tree(value, map_leaves, CPU)


def calls(**options):
    return Calls("the test", **{"budget_bytes": 1 << 20, "timeout_s": 30.0, **options})


@pytest.mark.parametrize("own", [False, True])
def test_values_that_are_to_stay_have_memory_of_their_own_and_no_slot_is_given_away(own):
    kept: list[Any] = []
    made = calls()
    for number in range(3):
        made.put(kept.append, tree(torch.full((4,), float(number))), f"batch {number}", own=own)
    made.finish()
    assert [one.tolist() for one in kept] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert made._link.keeps is not own
    assert made._slots.held_bytes == 0
    made.close()


def test_pinned_memory_stays_within_the_budget_whatever_the_call_keeps():
    kept: list[Any] = []
    made = calls(budget_bytes=256)
    for number in range(50):
        made.put(kept.append, tree(np.full(8, number, np.float64)), f"batch {number}")
        assert made._slots._allocated_bytes() <= 256
    made.close()
    assert [one[0] for one in kept] == list(range(50))


def test_a_call_that_does_not_end_is_named_when_the_bound_is_reached():
    held = threading.Event()
    made = calls(budget_bytes=64, timeout_s=0.2)
    made.put(lambda _: held.wait(60), tree(torch.zeros(4)), "batch 0")
    with pytest.raises(BoundError, match=r"batch 1 found no room in 64 bytes after 0.2 s: the test is writing batch 0"):
        made.put(lambda _: None, tree(torch.zeros(4)), "batch 1")
    with pytest.raises(BoundError, match="the test is not done after"):
        made.close()
    held.set()


def test_after_an_error_no_call_is_made_and_each_step_raises_it():
    seen: list[Any] = []
    made = calls()

    def fail(_):
        raise KeyError("y")

    made.put(seen.append, tree(None), "batch 0")
    made.put(fail, tree(torch.zeros(4)), "batch 1")
    with pytest.raises(SinkError, match="writing batch 1 failed: KeyError: 'y'"):
        made.finish()
    for step in (lambda: made.put(seen.append, tree(None), "batch 2"), made.finish, made.close, made.close):
        with pytest.raises(SinkError, match="batch 1"):
            step()
    assert seen == [None]


def test_a_thread_that_cannot_work_says_so():
    def around():
        raise DeviceError("the device is lost")

    made = calls(around=around)
    with suppress(DeviceError):  # at the put or behind it
        made.put(lambda _: None, tree(None), "batch 0")
    with pytest.raises(DeviceError, match="the device is lost"):
        made.close()


def test_the_thread_ends_with_its_owner():
    made = calls()
    made.put(lambda _: None, tree(torch.zeros(4)), "batch 0")
    made.finish()
    thread = made._thread
    del made
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_few_calls_wait_though_they_hold_no_bytes():
    held, most = threading.Event(), 0
    made = calls()
    made.put(lambda _: held.wait(30), tree(None), "batch 0")
    for number in range(1, 64):
        made.put(lambda _: None, tree(None), f"batch {number}")
        most = max(most, made.open)
    assert most == 64
    threading.Timer(0.05, held.set).start()
    made.put(lambda _: None, tree(None), "batch 64")
    assert held.is_set()
    made.close()
