"""Stages: what a sample is does not depend on who makes it, how many at once, or what fails and stops meanwhile."""

from __future__ import annotations

import functools
import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import Feed, Stage
from interlock._core import _spans
from interlock.check._hazards import Fold
from interlock.errors import SampleError, UsageError
from interlock.feed import Tolerance, retry
from interlock.feed._crew import Crew
from interlock.feed._stages import Chain, StageFailure, chain_of
from interlock.feed._times import Times
from interlock.feed._work import Work
from interlock.lowlevel import SimulatedDevice, observe

WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])
IN_TIME_S = 20


class Numbers:
    """The numbers below a length."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.int64(index)


class Named(Numbers):
    def id_of(self, index):
        return f"no. {index}"


class Bulk(Numbers):
    """Could read many at once."""

    def read_into(self, *_):
        raise AssertionError("with stages samples come one by one")


def double(value):
    return value * 2


def increment(value):
    return value + 1


def failing(numbers, function=increment):
    """Return a stage that raises for what the source calls one of `numbers`."""

    def stage(value):
        if int(value) in numbers:
            raise ValueError(f"bad apple {value}")
        return function(value)

    return stage


def read(feed):
    return [np.asarray(batch).tolist() for batch in feed]


def flat(feed):
    return [value for batch in read(feed) for value in batch]


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("interlock-feed")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(our_threads())
    yield
    for thread in set(our_threads()) - before:
        thread.join(0.5)
        if thread.is_alive():  # of a feed that a cycle holds
            gc.collect()
        thread.join(IN_TIME_S)
        assert not thread.is_alive(), thread.name


# ---------------------------------------------------------------- what a sample is


@WORKERS
@pytest.mark.parametrize("kind", [Numbers, Bulk])
def test_a_sample_goes_through_all_stages_in_their_order(kind, workers):
    feed = Feed(kind(10), batch_size=4, workers=workers, stages=[increment, Stage(double, workers=2)])
    assert read(feed) == [[2, 4, 6, 8], [10, 12, 14, 16], [18, 20]]


@WORKERS
def test_arrays_functions_and_iterables_go_through_stages(workers):
    def sample(info):
        if info.idx_in_epoch == 7:
            raise StopIteration
        return info.idx_in_epoch

    expected = [[1, 2, 3], [4, 5, 6], [7]]
    for source in (np.arange(7), sample, [0, 1, 2, 3, 4, 5, 6], IterableOf(7)):
        assert read(Feed(source, batch_size=3, workers=workers, stages=[increment])) == expected


class IterableOf:
    """An iterable that no two threads may read."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


@WORKERS
@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_stages_may_change_what_a_sample_is_made_of(to, workers):
    def take_apart(value):
        return {"value": np.float32(value), "pair": (np.full(3, value, np.int32), value % 2 == 0)}

    batches = list(Feed(Numbers(6), batch_size=4, to=to, workers=workers, stages=[str, int, take_apart]))
    assert np.asarray(batches[1]["value"]).tolist() == [4, 5]
    assert np.asarray(batches[1]["pair"][0]).tolist() == [[4] * 3, [5] * 3]
    assert np.asarray(batches[1]["pair"][1]).tolist() == [True, False]


class Overtaking:
    """A stage that lets one sample of each batch wait until another one of it has come through."""

    def __init__(self, pairs, batch_size):
        self.pairs = pairs
        self.batch_size = batch_size
        self.passed = [threading.Event() for _ in range(len(pairs) * batch_size)]

    def __call__(self, position):
        number, row = divmod(int(position), self.batch_size)
        held, awaited = self.pairs[number]
        last = number == len(self.pairs) - 1
        if row == held and held != awaited and position and not last:  # the first only tells the layout
            assert self.passed[number * self.batch_size + awaited].wait(IN_TIME_S)
        self.passed[position].set()
        return position


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_order_is_that_of_positions_whatever_overtakes_what(data):
    """Each stage has a worker for every row, so pieces are rows, and who is held back never holds all of them."""
    batch_size, depth = data.draw(st.integers(3, 6), "batch_size"), data.draw(st.integers(1, 2), "depth")
    batches = data.draw(st.integers(2, 5), "batches")
    pairs = st.lists(st.tuples(*[st.integers(0, batch_size - 1)] * 2), min_size=batches, max_size=batches)
    chain = [Overtaking(data.draw(pairs), batch_size) for _ in range(data.draw(st.integers(1, 3), "stages"))]
    samples = batches * batch_size - data.draw(st.integers(0, batch_size - 1), "short")
    feed = Feed(
        Numbers(samples),
        batch_size=batch_size,
        depth=depth,
        workers=data.draw(st.integers(1, 4), "readers"),
        stages=[Stage(one, workers=batch_size) for one in chain],
    )
    assert flat(feed) == list(range(samples))


@given(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    readers=st.integers(0, 4),
    stages=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shuffle=st.booleans(),
    bad=st.sets(st.integers(0, 39), max_size=5),
    action=st.sampled_from(["skip", "substitute"]),
)
@settings(max_examples=60, deadline=None)
def test_any_feed_gives_what_its_stages_make_of_the_source(samples, batch_size, readers, stages, shuffle, bad, action):
    """The reference is a feed on one thread whose source makes the whole sample by itself."""

    def whole(value):
        return functools.reduce(lambda made, _: increment(double(made)), stages, failing(bad, int)(value))

    class Whole(Numbers):
        def __getitem__(self, index):
            return np.int64(whole(index))

    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "seed": 5, "on_error": action, "ids": True}
    first, *rest = stages
    chain = [Stage(failing(bad, int), first)]
    chain += [Stage(lambda value: increment(double(value)), workers) for workers in [*rest, 1]]
    plain = Feed(Whole(samples), workers=0, **common)
    staged = Feed(Numbers(samples), workers=readers, stages=chain, **common)

    def told(feed):
        got: list[Any] = []
        try:
            got += [(ids.tolist(), batch.tolist()) for ids, batch in feed]
        except SampleError as error:
            got.append(error.index)
        return got, [(one.index, one.action, one.substitute_index, one.attempts) for one in feed.failures]

    assert told(staged) == told(plain)


def test_a_feed_goes_on_where_it_was_whatever_stages_have_made_ahead():
    chain = [Stage(double, workers=3), Stage(increment)]
    feed = Feed(Numbers(23), batch_size=4, workers=2, depth=3, shuffle=True, seed=3, stages=chain)
    whole = read(feed)
    feed.epoch = 0
    batches = iter(feed)
    taken = [next(batches).tolist() for _ in range(2)]
    later = Feed(Numbers(23), batch_size=4, workers=0, shuffle=True, seed=3, stages=chain)
    later.load_state_dict(feed.state_dict())
    assert taken + read(later) == whole
    feed.close()


# ---------------------------------------------------------------- how many at once


def test_a_stage_is_on_as_many_threads_as_it_has_workers():
    """Four calls wait for each other: with three workers nothing would ever come."""
    together = threading.Barrier(4)
    names = set()

    def stage(value):
        together.wait(IN_TIME_S)
        names.add(threading.current_thread().name)
        return value

    feed = Feed(Numbers(9), batch_size=9, workers=1, stages=[Stage(lazily(stage), workers=4, name="meet")])
    assert flat(feed) == list(range(9))
    assert names == {f"interlock-feed-meet-{index}" for index in range(4)}


def lazily(function):
    """Return the function, but for the first call, which only learns what samples look like."""
    calls = iter(range(1_000_000))

    def stage(value):
        return function(value) if next(calls) else value

    return stage


def test_stages_work_at_the_same_time_as_each_other_and_as_the_source():
    """The source is in one batch, the first stage in another, the second in a third: each waits for the others."""
    together = threading.Barrier(3)

    class Meeting(Numbers):
        def __getitem__(self, index):
            if index >= 3:
                together.wait(IN_TIME_S)
            return super().__getitem__(index)

    def meet(first, last):
        def stage(value):
            if first <= value <= last:
                together.wait(IN_TIME_S)
            return value

        return stage

    feed = Feed(Meeting(6), batch_size=1, workers=1, depth=6, stages=[meet(2, 4), meet(1, 3)])
    assert flat(feed) == list(range(6))


class Alone:
    """Calls that notice each other."""

    def __init__(self):
        self.lock = threading.Lock()
        self.met = 0
        self.pause = threading.Event()

    def __call__(self, value):
        if not self.lock.acquire(blocking=False):
            self.met += 1
            return value
        self.pause.wait(0.0005)  # others have the time to come in, if anything lets them
        self.lock.release()
        return value


def test_a_stage_of_one_worker_is_alone_in_its_function_though_samples_are_tried_again_elsewhere():
    """Half of all samples fail behind it, so that other threads make them again from the source on."""
    alone, reading = Alone(), Alone()
    tried: Counter[int] = Counter()

    class Source(Numbers):
        def __getitem__(self, index):
            return reading(super().__getitem__(index))

    def flaky(value):
        tried[int(value)] += 1
        if value % 2 and tried[int(value)] == 1:
            raise ValueError(value)
        return value

    feed = Feed(
        Source(60), batch_size=10, workers=1, depth=4, on_error=retry(1), stages=[alone, Stage(flaky, workers=6)]
    )
    assert flat(feed) == list(range(60))
    assert feed.statistics().retried == 30
    assert (alone.met, reading.met) == (0, 0)


def test_an_iterable_is_read_by_one_thread_and_its_batch_shared_by_the_workers_of_a_stage():
    """Two workers meet in the samples of one batch; the generator would raise if two threads were in it."""
    together = threading.Barrier(2)
    readers = set()

    class Generating:
        def __iter__(self):
            for value in range(9):
                readers.add(threading.current_thread().name)
                yield value

    def meet(value):
        together.wait(IN_TIME_S)
        return value

    feed = Feed(Generating(), batch_size=9, depth=1, workers=5, stages=[Stage(lazily(meet), workers=2)])
    assert flat(feed) == list(range(9))
    assert readers == {threading.current_thread().name, "interlock-feed-0"}  # the first sample tells the layout


# ---------------------------------------------------------------- errors


@WORKERS
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 5])
def test_an_error_names_sample_and_stage_and_keeps_its_traceback(workers, where, number):
    chain = [Stage(failing({number} if place == where else (), int), 2, name=f"stage{place}") for place in range(3)]
    feed = Feed(Named(12), batch_size=4, workers=workers, stages=chain)
    with pytest.raises(
        SampleError, match=rf"sample {number} \('no\. {number}'\), stage 'stage{where}' failed: ValueError: bad apple"
    ) as caught:
        read(feed)
    assert type(caught.value.__cause__) is ValueError
    assert caught.value.index == number
    names = []
    trace = caught.value.__cause__.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "stage"
    assert [(one.id, one.stage, one.action) for one in feed.failures] == [(f"no. {number}", f"stage{where}", "raised")]
    assert feed.failures[0].reason == f"stage 'stage{where}': ValueError: bad apple {number}"


def test_an_error_of_the_source_is_none_of_a_stage():
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 2:
                raise OSError("no such thing")
            return super().__getitem__(index)

    feed = Feed(Broken(6), batch_size=2, stages=[double], on_error="skip")
    assert read(feed) == [[0, 2], [6], [8, 10]]
    assert [(one.index, one.stage, one.reason) for one in feed.failures] == [(2, "read", "OSError: no such thing")]


@WORKERS
@pytest.mark.parametrize("where", [0, 1])
def test_bad_samples_of_a_stage_are_left_out_replaced_or_tried_again(workers, where):
    def chain(bad):
        stages = [Stage(int, 2), Stage(int, 2, name="other")]
        stages[where] = Stage(failing(bad, int), 2, name="sorting")
        return stages

    common = {"batch_size": 4, "workers": workers, "ids": True}
    skipping = Feed(Numbers(10), on_error="skip", stages=chain({0, 6, 9}), **common)
    assert [(ids.tolist(), batch.tolist()) for ids, batch in skipping] == [
        ([1, 2, 3], [1, 2, 3]),
        ([4, 5, 7], [4, 5, 7]),
        ([8], [8]),
    ]
    replacing = Feed(Numbers(10), on_error="substitute", stages=chain({0, 6, 9}), **common)
    assert [ids.tolist() for ids, _ in replacing] == [[1, 1, 2, 3], [4, 5, 7, 7], [8, 1]]
    assert {one.stage for one in [*skipping.failures, *replacing.failures]} == {"sorting"}
    assert [one.substitute_index for one in replacing.failures] == [1, 7, 1]


@WORKERS
def test_a_sample_is_tried_again_from_the_source_on(workers):
    asked: Counter[tuple[str, int]] = Counter()

    class Source(Numbers):
        def __getitem__(self, index):
            asked["source", index] += 1
            return super().__getitem__(index)

    def flaky(value):
        asked["stage", int(value)] += 1
        if value in {0, 5} and asked["stage", int(value)] < 3:
            raise ValueError("later")
        return value

    feed = Feed(Source(8), batch_size=4, workers=workers, stages=[flaky, double], on_error=retry(2))
    assert flat(feed) == [2 * value for value in range(8)]
    assert asked["source", 5] == asked["stage", 5] == asked["source", 0] == 3
    assert (feed.statistics().retried, feed.failures) == (4, [])


def test_bounds_hold_for_what_fails_in_stages():
    feed = Feed(Numbers(20), batch_size=4, stages=[failing({1, 5, 9})], on_error=Tolerance("skip", most=2))
    with pytest.raises(SampleError, match="3 of 12 samples are bad"):
        read(feed)


@WORKERS
@pytest.mark.parametrize("source", [Numbers(8), lambda info: info.idx_in_epoch, IterableOf(8)])
def test_stop_iteration_in_a_stage_is_an_error_and_ends_no_epoch(source, workers):
    def leaky(value):
        if value == 5:
            next(iter(()))
        return value

    feed = Feed(
        source, batch_size=2, workers=workers, stages=[double, Stage(lambda value: leaky(value // 2), 2, "leak")]
    )
    with pytest.raises(SampleError, match="sample 5, stage 'leak' failed: StopIteration"):
        read(feed)


@WORKERS
def test_what_no_sample_is_guilty_of_ends_the_epoch_as_it_is(workers):
    def leave(value):
        if value == 5:
            raise SystemExit("enough")
        return value

    feed = Feed(Numbers(30), batch_size=2, workers=workers, stages=[leave, double], on_error="skip")
    with pytest.raises(SystemExit, match="enough"):
        read(feed)


@WORKERS
def test_a_stage_that_changes_the_shape_of_some_samples_is_named(workers):
    feed = Feed(
        Numbers(8), batch_size=4, workers=workers, stages=[lambda n: np.zeros(2 + (n == 6)), Stage(abs, 1, "last")]
    )
    with pytest.raises(SampleError, match=r"sample 6, stage 'last': the array has shape \(3,\), the first"):
        read(feed)


# ---------------------------------------------------------------- the end


@given(
    readers=st.integers(1, 3),
    stages=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    depth=st.integers(1, 4),
    taken=st.integers(0, 6),
    how=st.sampled_from(["close", "drop", "error"]),
)
@settings(max_examples=30, deadline=None)
def test_stopping_anywhere_leaves_no_thread_and_no_slot_behind(readers, stages, depth, taken, how):
    bad = {taken * 3} if how == "error" else ()
    chain = [Stage(failing(bad, int), one) for one in stages]
    feed = Feed(Numbers(30), batch_size=3, workers=readers, depth=depth, stages=chain)
    batches = iter(feed)
    for _ in range(taken):
        next(batches)
    pipeline, staging, crew = batches.pipeline, batches.staging, batches.pipeline.crew
    assert isinstance(crew, Crew)
    if how == "close":
        feed.close()
    elif how == "error":
        with pytest.raises(SampleError):
            next(batches)
    del batches
    if how == "drop":
        gc.collect()
    for thread in crew._threads:
        thread.join(IN_TIME_S)
        assert not thread.is_alive()
    assert pipeline.idle
    assert staging.ring.statistics().ready == staging.ring.statistics().filling == 0
    assert not pipeline._works


@pytest.mark.parametrize("together", [True, False])
def test_pieces_in_the_queue_of_a_stage_are_settled_when_a_pass_is_stopped(together):
    """The last stage holds its first piece, one row or four; all others are in its queue when the feed is closed."""
    inside, go = threading.Event(), threading.Event()
    seen = []
    first_stage_is_done = threading.Semaphore(0)

    def hold(value):
        inside.set()
        assert go.wait(IN_TIME_S)
        seen.append(int(value))
        return value

    def count(value):
        first_stage_is_done.release()
        return value

    feed = Feed(Numbers(12), batch_size=4, workers=1, depth=2, stages=[count, lazily(hold)])
    batches = iter(feed)
    pipeline, crew = batches.pipeline, batches.pipeline.crew
    assert isinstance(crew, Crew)
    if together:
        pipeline._reader._sample_s = 0.0  # type: ignore[attr-defined] # samples were quick so far
    pipeline._refill()  # what `next` does first
    assert inside.wait(IN_TIME_S)
    for _ in range(8):
        assert first_stage_is_done.acquire(timeout=IN_TIME_S)
    feed.close()
    idle = [pipeline.idle]
    go.set()
    crew.join(time.monotonic() + IN_TIME_S)
    idle.append(pipeline.idle)
    assert idle == [False, True]
    assert seen == [1], "a piece was made though nobody wanted it any more"


def test_a_dropped_feed_ends_its_threads():
    feed = Feed(Numbers(1000), batch_size=2, workers=2, stages=[Stage(double, 3), increment])
    batches = iter(feed)
    next(batches)
    threads = our_threads()
    assert len(threads) >= 6
    gone: weakref.ref[Any] = weakref.ref(feed)
    del feed, batches
    gc.collect()
    for thread in threads:
        thread.join(IN_TIME_S)
        assert not thread.is_alive()
    assert gone() is None


def test_threads_that_cannot_be_started_leave_none_behind(monkeypatch):
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def fail_at_the_fourth(thread):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_the_fourth)
    with pytest.raises(RuntimeError, match="can't start"):
        iter(Feed(Numbers(8), batch_size=2, workers=2, stages=[Stage(double, 2), increment]))
    for thread in started:
        thread.join(IN_TIME_S)
        assert not thread.is_alive()


def test_a_program_may_end_in_the_middle_of_a_pass():
    program = """
        import itertools
        from interlock import Feed, Stage
        feed = Feed(list(range(100_000)), batch_size=8, depth=8, workers=3,
                    stages=[Stage(str, workers=3), Stage(int, workers=2)])
        batches = iter(feed)
        print(sum(batch.sum() for batch in itertools.islice(batches, 3)))
    """
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{sum(range(24))}\n", "")


# ---------------------------------------------------------------- what is told of them


def test_statistics_tell_of_each_stage():
    feed = Feed(Numbers(40), batch_size=4, workers=2, stages=[Stage(double, workers=3), Stage(increment, name="plus")])
    read(feed)
    stages = feed.statistics().stages
    assert [(one.name, one.kind, one.workers, one.samples, one.crew) for one in stages] == [
        ("read", "threads", 2, 40, ""),
        ("double", "threads", 3, 40, ""),
        ("plus", "threads", 1, 40, ""),
        ("copy", "threads", 1, 40, "plus"),
    ]
    assert all(one.busy_s > 0 for one in stages)
    assert [one.cpu_s is None for one in stages] == [False, False, False, True]
    elapsed_s = feed.statistics().elapsed_s
    assert all(0 <= one.starved_s <= elapsed_s * one.workers for one in stages)
    assert stages[0].busy_s == feed.statistics().fetch_s


def test_inline_all_stages_share_the_consumer_s_thread():
    names = set()

    def stage(value):
        names.add(threading.current_thread().name)
        return value

    feed = Feed(Numbers(8), batch_size=4, workers=0, stages=[Stage(stage, workers=3, name="any")])
    read(feed)
    assert names == {threading.current_thread().name}
    stages = feed.statistics().stages
    assert [(one.name, one.kind, one.workers, one.crew) for one in stages] == [
        ("read", "inline", 1, ""),
        ("any", "inline", 1, "read"),
        ("copy", "inline", 1, "read"),
    ]
    assert stages[1].busy_s > 0


def test_time_in_a_stage_is_counted_there():
    """A stage that waits has the time; the others have next to none of it."""
    pause = threading.Event()

    def wait(value):
        pause.wait(0.01)
        return value

    feed = Feed(Numbers(20), batch_size=4, stages=[double, wait])
    read(feed)
    _, first, second, _ = feed.statistics().stages
    assert second.busy_s >= 0.2 * 0.9
    assert first.busy_s < second.busy_s / 2


@pytest.mark.parametrize(
    ("kind", "starved_s", "cpu_s", "crews"),
    [
        ("threads", [2 * 10 - 1, 3 * 10 - 2, 10 - 4 - 8, 0], [0.25, 1, 6, None], ["", "", "", "increment"]),
        ("inline", [20 - 15, 0, 0, 0], [0.25, None, None, None], ["", "read", "read", "read"]),
    ],
)
def test_what_workers_had_nothing_to_do_for_is_what_they_were_not_busy_for(kind, starved_s, cpu_s, crews):
    """Who writes into the slot besides is busy with that too. Processor time is known of the first of two batches."""
    chain = Chain([Stage(double, 3), Stage(increment)])
    times = Times(kind, 2, chain.steps)
    for part, known in ((0.5, 1), (0.5, 0)):
        work = Work(0, 0, 4, units=1, fetch_s=1 * part, copy_s=8 * part, cpu_s=0.125 * known)
        work.count_stage(0, 2 * part, 0.5 * known)
        work.count_stage(1, 4 * part, 3 * known)
        times.count(work)
    stages = times.stages(samples=8, elapsed_s=10)
    assert [one.busy_s for one in stages] == [1, 2, 4, 8]
    assert [one.starved_s for one in stages] == [max(0, one) for one in starved_s]
    assert [one.cpu_s for one in stages] == cpu_s
    assert [one.crew for one in stages] == crews


def test_a_trace_has_the_stages():
    heard: list[_spans.Span] = []
    remove = _spans.listen(lambda one: heard.append(one) if isinstance(one, _spans.Span) else None)
    try:
        read(Feed(Numbers(8), batch_size=4, workers=1, stages=[Stage(double, 2), Stage(increment, name="plus")]))
    finally:
        remove()
    for name, track in [
        ("read", "host:interlock-feed-0"),
        ("double", "host:interlock-feed-double-"),
        ("plus", "host:interlock-feed-plus-0"),
        ("fill", "host:interlock-feed-plus-0"),
    ]:
        spans = [one for one in heard if one.name == name]
        assert {one.number for one in spans} == {0, 1}
        assert all(one.track.startswith(track) and one.start_ns <= one.end_ns for one in spans)
    assert sum(one.size_bytes for one in heard if one.name == "fill") == 2 * 128  # a slot's bytes, padding and all


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (double, "give a list of functions and Stages"),
        ([3], "a int is no stage"),
        ([Stage(double, name="x"), Stage(double, name="x")], "two stages are called 'x'"),
        ([Stage(double, name="read")], "a stage is called 'read'"),
    ],
)
def test_stages_that_cannot_be_meant_are_refused(stages, message):
    with pytest.raises(UsageError, match=message):
        Feed(Numbers(3), batch_size=1, stages=stages)


def test_a_stage_needs_a_worker_and_a_name_if_it_is_given_one():
    with pytest.raises(UsageError, match="a stage has 0 workers; give at least 1"):
        Stage(double, workers=0)
    with pytest.raises(UsageError, match="the name of a stage is empty"):
        Stage(double, name="")


def test_stages_are_called_as_their_functions_and_numbered_where_that_is_not_enough():
    class Transform:
        def __call__(self, value):
            return value

    def read(value):
        return value

    chain = chain_of(
        [double, double, functools.partial(functools.partial(double)), Transform(), read, Stage(abs, 1, "a")]
    )
    assert chain is not None
    assert [step.name for step in chain.steps] == ["double", "double 2", "double 3", "Transform", "read 2", "a"]
    assert chain_of([]) is chain_of(()) is None


def test_a_chain_can_be_sent_to_another_process():
    chain = pickle.loads(pickle.dumps(Chain([Stage(double, 2), Stage(increment)])))  # noqa: S301 - our own bytes
    seconds = [0.0, 0.0]
    assert chain(4, seconds=seconds) == 9
    assert all(one > 0 for one in seconds)
    failure = pickle.loads(pickle.dumps(StageFailure("decode", ValueError("x"))))  # noqa: S301 - our own bytes
    assert (failure.stage, type(failure.error)) == ("decode", ValueError)


# ---------------------------------------------------------------- on a device


@pytest.mark.parametrize("schedule", ["lazy", "eager", "starve:feed", "random:1"])
def test_batches_are_right_under_every_schedule_and_no_access_is_out_of_order(schedule):
    def fill(value, out=None):
        if out is None:
            return np.full(5, value, np.float32)
        out.fill(value)
        return out

    fold = Fold()
    stop = observe(fold.add)
    try:
        device = SimulatedDevice(schedule)
        feed = Feed(
            Numbers(60), batch_size=8, depth=3, device=device, workers=2, stages=[Stage(double, 3), Stage(fill, 2)]
        )
        for _ in range(2):
            assert [batch[:, 4].tolist() for batch in feed] == [
                [2 * value for value in range(first, min(60, first + 8))] for first in range(0, 60, 8)
            ]
    finally:
        stop()
    assert fold.steps > 50
    assert fold.findings == []
