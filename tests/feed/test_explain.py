"""Why a consumer waits: what is told from given numbers, and that a feed gives these numbers."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import Feed
from interlock._core._processors import Turns, processors
from interlock.feed import FeedStatistics, StageTimes
from interlock.feed._attribution import Setting, _airport, find
from interlock.feed._explain import explain

SETTING = Setting(batch_size=16, depth=2, processors=8)


def told(**more):
    """Return the statistics of a hundred batches that took a second, half of it waiting for one thread that reads."""
    read = StageTimes("read", "threads", 1, 1600, busy_s=0.98, cpu_s=0.1)
    numbers = {"passes": 1, "batches": 100, "samples": 1600, "nbytes": 10**8, "wait_s": 0.5, "elapsed_s": 1.0}
    return FeedStatistics(**{"process_s": 0.2, "stages": (read,), **numbers, **more})


def test_shapley_values_of_known_games():
    assert _airport([2.0, 1.5], 1.0) == pytest.approx([0.75, 0.25])
    assert _airport([1.0, 3.0, 0.5], 0.0) == pytest.approx([0.5 / 3 + 0.25, 0.5 / 3 + 0.25 + 2.0, 0.5 / 3])
    assert _airport([0.2, 0.3], 1.0) == [0.0, 0.0]


SECONDS = st.floats(0.0, 100.0)
CREWS = st.lists(st.tuples(SECONDS, st.integers(1, 64)), min_size=1, max_size=5)


@given(CREWS, SECONDS, st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_shares_are_parts_of_the_waiting_whatever_the_numbers(crews, elapsed_s, wait, slot, wake):
    stages = tuple(
        StageTimes(f"stage {index}", "threads", workers, 100, busy_s) for index, (busy_s, workers) in enumerate(crews)
    )
    wait_s = wait * elapsed_s
    slot_s, wake_s = slot * wait_s, wake * wait_s
    found = find(
        told(elapsed_s=elapsed_s, wait_s=wait_s, wait_slot_s=slot_s, wake_s=wake_s, wakes=9, stages=stages), SETTING
    )
    parts = [*(one.share for one in found.stages), *(part for _, part in found.other)]
    assert all(-1e-9 <= part <= 1.0 + 1e-9 for part in parts)
    assert sum(parts) <= 1.0 + 1e-6
    if sum(busy_s for busy_s, _ in crews) > 1e-3 and wait_s > 1e-3:
        assert sum(parts) == pytest.approx(1.0, abs=0.02)


def test_the_wait_for_the_first_batch_is_start_up_and_not_counted_as_waiting():
    explanation = explain(told(wait_s=30.001, start_s=30.0, elapsed_s=31.0), SETTING)
    assert explanation.findings.limit == "none"
    assert explanation.findings.wait == pytest.approx(0.001)
    assert explanation.elapsed_s == pytest.approx(1.0)
    assert "the first batch took 30.0 s" in str(explanation)


@pytest.mark.parametrize(("batches", "passes"), [(0, 0), (1, 1), (5, 3)])
def test_few_batches_tell_nothing(batches, passes):
    explanation = explain(told(batches=batches, passes=passes), SETTING)
    assert explanation.findings.limit == "unknown"
    assert "too few to tell" in str(explanation)


CASES = {
    "stage": (told(), SETTING, "Read has 1 worker, busy 97 % of the time: 3 would keep up (workers=3"),
    "source": (told(), replace(SETTING, serial=True), "one thread reads it and more do not help"),
    "processors": (told(process_s=7.5), SETTING, "this machine's 8 processors have no more to give (7.4 in use)"),
    "others": (told(ran_s=0.3, delayed_s=0.4), SETTING, "other programs run on this machine's 8 processors"),
    "hand-over": (
        told(
            elapsed_s=0.01, wait_s=0.01, process_s=0.01, stages=(StageTimes("read", "threads", 2, 1600, busy_s=0.002),)
        ),
        SETTING,
        "A batch comes every 101 µs, and no stage is busy for most of that: larger batches",
    ),
    "slots": (told(wait_slot_s=0.4, slots_lent=3), SETTING, "The consumer holds 3 batches of 1.0 MB"),
    "link": (
        told(wait_slot_s=0.4, wait_link_s=0.4),
        replace(SETTING, device="cuda:0"),
        "The copies to cuda:0 take longer than the consumer's steps, and carry 0.10 GB/s",
    ),
    "inline": (
        told(stages=(StageTimes("read", "inline", 1, 1600, busy_s=0.5, cpu_s=0.2),)),
        SETTING,
        "The consumer's own thread makes the batches",
    ),
    "none": (told(wait_s=0.002), SETTING, "The feed keeps up: in 1.0 s the consumer waited 0.2 ms of each 100."),
}


@pytest.mark.parametrize(("limit", "case"), CASES.items())
def test_each_limit_has_its_sentence(limit, case):
    statistics, setting, sentence = case
    explanation = explain(statistics, setting)
    assert explanation.findings.limit == limit
    assert sentence in str(explanation)


def test_more_processes_are_asked_for_as_processes():
    read = StageTimes("read", "processes", 1, 1600, busy_s=0.98, cpu_s=0.1)
    assert "3 would keep up (workers='processes:3' and depth=3" in str(explain(told(stages=(read,)), SETTING))


def test_a_consumer_that_is_short_of_slots_is_told_so_though_it_never_waits_without_any():
    """Two of three slots held: one is always in the making, so the wait is for samples, and the cause is the slots."""
    read = StageTimes("read", "threads", 4, 1600, busy_s=2.4)
    short = told(slotless=100, stages=(read,), slots_lent=2)
    assert explain(short, SETTING).findings.limit == "slots"
    assert explain(replace(short, slotless=0), SETTING).findings.limit == "depth"


def test_workers_that_wait_for_a_disk_do_not_care_whether_processors_are_taken():
    busy = told(ran_s=0.1, delayed_s=0.4)
    assert explain(busy, SETTING).findings.limit == "others"
    assert explain(replace(busy, delayed_s=0.1), SETTING).findings.limit == "stage"


def test_processes_that_are_not_busy_may_be_in_line_for_a_processor():
    """What they are in line for is not seen, but this process is in line for the same ones."""
    read = StageTimes("read", "processes", 2, 1600, busy_s=0.8, cpu_s=0.4)
    assert explain(told(ran_s=0.05, delayed_s=0.05, stages=(read,)), SETTING).findings.limit == "others"
    assert explain(told(ran_s=0.05, delayed_s=0.01, stages=(read,)), SETTING).findings.limit == "depth"


def test_the_whole_sentence():
    stages = (
        StageTimes("read", "threads", 8, 1600, busy_s=1.2),
        StageTimes("decode", "threads", 2, 1600, busy_s=1.77, cpu_s=1.7),
        StageTimes("copy", "threads", 2, 1600, busy_s=0.19, crew="decode"),
    )
    statistics = told(wait_s=0.41, process_s=2.0, stages=stages)
    assert str(explain(statistics, replace(SETTING, chosen="threads: read lets go of the lock"))) == (
        "In 1.0 s the consumer waited 41 ms of each 100: decode 90 %, copy 10 %. "
        "Decode and copy share 2 workers, busy 97 % of the time: 4 would keep up "
        "(Stage(..., workers=4) and depth=3; this machine has 8 processors), or make its work smaller. "
        "workers='auto' chose threads: read lets go of the lock."
    )


def test_an_explanation_is_plain_values_for_json():
    fields = json.loads(json.dumps(explain(told(), SETTING).as_dict()))
    assert fields["findings"]["limit"] == "stage"
    assert fields["findings"]["workers"] == {"read": 3}
    assert fields["text"].startswith("In 1.0 s the consumer waited 50 ms of each 100: read 100 %.")


def test_processors_are_those_that_the_container_grants(tmp_path):
    quota = tmp_path / "cpu.max"
    everything = processors(tmp_path / "none")
    quota.write_text("50000 100000\n")
    assert processors(quota) == 0.5
    quota.write_text("max 100000\n")
    assert processors(quota) == everything >= 1


def test_turns_are_those_of_the_threads_that_the_system_counts(tmp_path):
    def count(thread, text):
        (tmp_path / thread).mkdir(exist_ok=True)
        (tmp_path / thread / "schedstat").write_text(text)

    count("1", "1000000000 500000000 3\n")
    turns = Turns(tmp_path)
    count("1", "3000000000 600000000 4\n")
    count("2", "1000000000 1000000000 1\n")  # begun since
    count("3", "")  # just ended
    turns.update()
    turns.update()
    assert (turns.ran_s, turns.delayed_s) == pytest.approx((3.0, 1.1))
    nowhere = Turns(tmp_path / "missing")
    nowhere.update()
    assert (nowhere.ran_s, nowhere.delayed_s) == (0.0, 0.0)


# ------------------------------------------------------------ what a feed counts


def test_a_feed_fills_its_stages():
    feed = Feed(np.arange(4000.0), batch_size=100, workers=2)
    for _ in range(2):
        list(feed)
    told = feed.statistics()
    assert [(one.name, one.kind, one.workers, one.samples, one.crew) for one in told.stages] == [
        ("read", "threads", 2, 8000, ""),
        ("copy", "threads", 2, 8000, "read"),
    ]
    assert told.passes == 2
    assert told.stages[0].busy_s == told.fetch_s > 0
    assert 0 < told.start_s <= told.wait_s <= told.elapsed_s
    assert json.loads(json.dumps(told.as_dict()))["stages"][1]["name"] == "copy"
    assert Feed(np.arange(3), batch_size=2, workers=0).explain().findings.limit == "unknown"


def test_inline_stages_are_the_consumer_s_own():
    feed = Feed([np.zeros(3)] * 50, batch_size=10, workers=0)
    list(feed)
    assert [(one.kind, one.workers) for one in feed.statistics().stages] == [("inline", 1)] * 2


def test_what_was_done_before_can_be_left_out():
    feed = Feed(np.arange(1000.0), batch_size=100, workers=1)
    list(feed)
    before = feed.statistics()
    list(feed)
    assert feed.explain().batches == 20
    assert feed.explain(since=before).batches == 10
    done = feed.statistics().since(before)
    assert done.slots == before.slots == feed.statistics().slots > 0
    assert replace(before, slotless=7).since(replace(before, slotless=4)).slotless == 3
    assert (done.samples, done.passes, done.stages[0].samples) == (1000, 1, 1000)
    assert done.stages[0].busy_s == pytest.approx(feed.statistics().fetch_s - before.fetch_s)


def test_a_pass_that_is_over_counts_once_though_its_iterator_is_kept():
    feed = Feed(np.arange(1000.0), batch_size=100)
    kept = [iter(feed), iter(feed)]
    assert [len(list(iterator)) for iterator in kept] == [10, 10]
    assert feed.statistics().batches == 20


def test_a_pass_that_was_dropped_still_counts():
    feed = Feed(np.arange(1000.0), batch_size=100)
    for _ in feed:
        break
    iterator = iter(feed)
    next(iterator)
    next(iterator)
    del iterator
    assert feed.statistics().batches == 3
    list(feed)
    assert feed.statistics().batches == 13


def test_statistics_may_be_asked_for_on_any_thread_while_passes_begin_and_end():
    feed = Feed(np.arange(64.0), batch_size=8)
    stop, failed, most = threading.Event(), [], 0

    def ask():
        nonlocal most
        while not stop.is_set():
            try:
                batches = feed.statistics().batches
                assert batches >= most
                most = batches
            except Exception as error:  # noqa: BLE001 - shown by the test
                failed.append(error)
                return

    thread = threading.Thread(target=ask)
    thread.start()
    for number in range(60):
        for _ in feed:
            if number % 3 == 0:
                break
    stop.set()
    thread.join()
    assert failed == []
    assert feed.statistics().batches == 20 + 40 * 8
