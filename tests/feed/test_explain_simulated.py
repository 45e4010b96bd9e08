"""Shares, limits and recommended workers against a feed as a discrete-event simulation.

Time is arithmetic here, so nothing depends on the machine: what a change would do to the waiting is computed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import pytest

from interlock.feed import FeedStatistics, StageTimes
from interlock.feed._attribution import Setting, find
from interlock.feed._explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Stage:
    """A stage: what a sample waits for outside (`io_s`), and computes (`cpu_s`), on average."""

    name: str
    workers: int
    io_s: float = 0.0
    cpu_s: float = 0.0
    crew: str = ""
    kind: Literal["threads", "processes"] = "threads"
    locks: bool = False  # computes under the interpreter lock
    spread: Callable[[random.Random], float] = lambda _: 1.0


class Resource:
    """So many at a time; the others wait in line."""

    def __init__(self, sim, count):
        self.sim, self.free, self.line = sim, count, []

    def use(self, seconds, then):
        if self.free:
            self.free -= 1
            self.sim.after(seconds, lambda: self._done(then))
        else:
            self.line.append((seconds, then))

    def _done(self, then):
        self.free += 1
        if self.line:
            self.use(*self.line.pop(0))
        then()


class Crew:
    def __init__(self, sim, stages, onward):
        self.sim, self.stages, self.onward = sim, stages, onward
        self.free, self.waiting = stages[0].workers, []

    def take(self, sample):
        heapq.heappush(self.waiting, sample)
        self._next()

    def _next(self):
        while self.free and self.waiting:
            self.free -= 1
            self._do(heapq.heappop(self.waiting), 0)

    def _do(self, sample, index):
        if index == len(self.stages):
            self.free += 1
            self.onward(sample)
            self._next()
            return
        stage, sim, began = self.stages[index], self.sim, self.sim.now
        factor = stage.spread(sim.random)

        def computed():
            sim.busy[stage.name] += sim.now - began
            sim.cpu[stage.name] += stage.cpu_s * factor
            self._do(sample, index + 1)

        def arrived():
            if stage.cpu_s:
                resource = sim.lock if stage.locks and stage.kind == "threads" else sim.machine
                resource.use(stage.cpu_s * factor, computed)
            else:
                computed()

        sim.after(stage.io_s * factor, arrived)


@dataclass
class FeedOnPaper:
    """`run()` gives the statistics that a real feed would have."""

    stages: list[Stage]
    step_s: float
    batch_size: int = 16
    depth: int = 2
    processors: int = 64
    batches: int = 200
    seed: int = 0
    now: float = field(default=0.0, init=False)

    def after(self, seconds, act):
        heapq.heappush(self.events, (self.now + seconds, next(self.ticket), act))

    def run(self):
        self.now, self.ticket = 0.0, itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.random = random.Random(self.seed)  # noqa: S311 - a simulation
        self.busy = {stage.name: 0.0 for stage in self.stages}
        self.cpu = dict(self.busy)
        self.lock, self.machine = Resource(self, 1), Resource(self, self.processors)
        self.left = {}
        grouped: dict[str, list[Stage]] = {}
        for stage in self.stages:
            grouped.setdefault(stage.crew or stage.name, []).append(stage)
        onward = self._made
        for stages in reversed(grouped.values()):
            crew = Crew(self, stages, onward)
            onward = crew.take
        self.first = onward
        self.wait_s = self.start_s = self.wake_s = 0.0
        self.wakes = self.planned = self.taken = 0
        self.asked: float | None = None
        self._ask()
        while self.events:
            self.now, _, act = heapq.heappop(self.events)
            act()
        return self._statistics()

    def _ask(self):
        while self.planned < self.batches and self.planned - self.taken < self.depth:
            self.left[self.planned] = self.batch_size
            for row in range(self.batch_size):
                self.first(self.planned * self.batch_size + row)
            self.planned += 1
        if self.taken < self.batches:
            self.asked = self.now
            if not self.left[self.taken]:
                self._hand_over()

    def _made(self, sample):
        number = sample // self.batch_size
        self.left[number] -= 1
        if not self.left[number] and number == self.taken and self.asked is not None:
            late = 0.005 if not self.lock.free else 0.00005
            self.wakes += 1
            self.wake_s += late
            self.after(late, self._hand_over)

    def _hand_over(self):
        assert self.asked is not None
        self.wait_s += self.now - self.asked
        if not self.taken:
            self.start_s = self.wait_s
        self.asked = None
        self.taken += 1
        self.after(self.step_s, self._ask)

    def _statistics(self):
        samples = self.batches * self.batch_size
        stages = [
            StageTimes(one.name, one.kind, one.workers, samples, self.busy[one.name], 0.0, self.cpu[one.name], one.crew)
            for one in self.stages
        ]
        return FeedStatistics(
            passes=1,
            batches=self.batches,
            samples=samples,
            wait_s=self.wait_s,
            start_s=self.start_s,
            elapsed_s=self.now,
            wakes=self.wakes,
            wake_s=self.wake_s,
            process_s=sum(self.cpu[one.name] for one in self.stages if one.kind != "processes"),
            stages=tuple(stages),
        )


# ------------------------------------------------------------ what is said of it

SETTING = Setting(batch_size=16, depth=2, processors=8)


def setting_of(feed, **more):
    return Setting(feed.batch_size, feed.depth, feed.processors, **more)


def waited(statistics):
    """Return the part of the time that was waited for batches after the first."""
    return (statistics.wait_s - statistics.start_s) / (statistics.elapsed_s - statistics.start_s)


def faster(feed, name):
    """Return the feed with one stage that takes next to no time."""
    stages = [
        replace(one, io_s=one.io_s / 1e3, cpu_s=one.cpu_s / 1e3) if one.name == name else one for one in feed.stages
    ]
    return replace(feed, stages=stages)


def changed(feed, found):
    """Return the feed as the findings recommend."""
    workers, stages = dict(found.workers), []
    for one in feed.stages:
        crew = one.crew or one.name
        kind = "processes" if found.limit == "interpreter" and crew == found.stage else one.kind
        stages.append(replace(one, workers=workers.get(crew, one.workers), kind=kind))
    return replace(feed, stages=stages, depth=found.depth or feed.depth)


def exponential(source):
    return source.expovariate(1.0)


def drawn(seed):
    """Return a random chain: its consumer is up to four times faster than it, or a bit slower."""
    source = random.Random(seed)  # noqa: S311 - as above
    spread = source.choice([lambda _: 1.0, lambda one: one.uniform(0.5, 1.5)])
    stages = [Stage("read", source.randint(1, 4), io_s=source.uniform(0.5, 4) / 1e3, spread=spread)]
    for name in ["decode", "augment"][: source.randint(0, 2)]:
        cpu_s, io_s = source.uniform(0.2, 4) / 1e3, source.choice([0.0, 0.001])
        stages.append(Stage(name, source.randint(1, 4), cpu_s=cpu_s, io_s=io_s, spread=spread))
    last = stages[-1]
    stages.append(Stage("copy", last.workers, cpu_s=0.0002, crew=last.name))
    pace_s = max((one.io_s + one.cpu_s) / one.workers for one in stages) * 16
    return FeedOnPaper(stages, pace_s * source.uniform(0.25, 1.1), processors=source.choice([2, 8, 64]), seed=seed)


@pytest.mark.parametrize("seed", range(40))
def test_who_has_the_largest_share_is_who_must_become_faster(seed):
    feed = drawn(seed)
    found, wait = find(feed.run(), setting_of(feed)), waited(feed.run())
    if wait < 0.05:
        assert found.limit in {"none", "stage", "processors"}
        return
    gained = {one.name: wait - waited(faster(feed, one.name).run()) for one in feed.stages}
    first, second, *_ = [*sorted(found.stages, key=lambda one: -one.share), found.stages[0]]
    if first.share - second.share > 0.2 and found.limit == "stage":
        assert gained[first.name] >= max(gained.values()) - 0.02


@pytest.mark.parametrize("seed", range(60))
def test_what_is_recommended_ends_the_waiting_or_nothing_would(seed):
    feed = drawn(seed)
    found = find(feed.run(), setting_of(feed))
    if found.limit == "none":
        assert waited(feed.run()) < 0.02
        return
    if found.keeps_up:
        assert waited(changed(feed, found).run()) < 0.02
        return
    assert found.limit in {"processors", "stage"}
    if 0.9 <= found.machine_s / feed.step_s < 1.0:  # it might, if nothing came by chance
        return
    most = replace(feed, depth=8, stages=[replace(one, workers=16 * one.workers) for one in feed.stages])
    assert waited(most.run()) > 0.02


def test_the_recommendation_is_not_far_above_what_is_needed():
    feed = FeedOnPaper([Stage("read", 2, io_s=0.005)], 0.01)  # needs 8 at the least
    found = find(feed.run(), setting_of(feed))
    assert dict(found.workers) == {"read": 9}


def test_a_busy_stage_with_many_workers_is_not_blamed_for_its_total_time():
    stages = [Stage("read", 32, io_s=0.020), Stage("decode", 1, cpu_s=0.002)]
    loads = {one.name: one for one in find(FeedOnPaper(stages, 0.01).run(), SETTING).stages}
    assert loads["read"].work_s > 5 * loads["decode"].work_s
    assert loads["decode"].share > 0.95
    assert loads["decode"].busy > 0.95
    assert loads["read"].busy < 0.5


def test_stages_of_one_crew_share_by_time():
    stages = [Stage("read", 4, io_s=0.003), Stage("copy", 4, cpu_s=0.001, crew="read")]
    shares = {one.name: one.share for one in find(FeedOnPaper(stages, 0.004).run(), SETTING).stages}
    assert shares["read"] / shares["copy"] == pytest.approx(3.0, rel=0.01)


def test_threads_that_wait_for_each_other_are_told_from_threads_that_wait_for_a_disk():
    lock = [Stage("read", 4, cpu_s=0.002, locks=True)]
    disk = [Stage("read", 4, io_s=0.0075, cpu_s=0.0005)]  # as busy, as slow, and on the same processors
    locked, waiting = (FeedOnPaper(one, 0.02, processors=8) for one in (lock, disk))
    found = find(locked.run(), setting_of(locked))
    assert (found.limit, dict(found.workers)) == ("interpreter", {"read": 2})
    assert waited(changed(locked, found).run()) < 0.02
    more_threads = replace(locked, stages=[replace(lock[0], workers=16)], depth=8)
    assert waited(more_threads.run()) > 0.3
    assert find(waiting.run(), setting_of(waiting)).limit == "stage"
    assert find(locked.run(), setting_of(locked, locked=False)).limit == "stage"


def test_one_thread_that_holds_the_lock_is_known_by_how_late_the_consumer_wakes():
    feed = FeedOnPaper([Stage("read", 1, cpu_s=0.002, locks=True)], 0.0, processors=8)
    told = feed.run()
    late = replace(told, wake_s=told.wakes * 0.005)
    assert "holds the interpreter lock" in str(explain(late, setting_of(feed)))
    assert "workers='processes:" in str(explain(late, setting_of(feed)))
    assert "interpreter lock" not in str(explain(replace(told, wake_s=told.wakes * 0.0001), setting_of(feed)))


def test_small_batches_need_more_of_them_on_their_way():
    feed = FeedOnPaper([Stage("read", 16, io_s=0.05)], 0.02, batch_size=4)
    found = find(feed.run(), setting_of(feed))
    assert (found.limit, found.workers) == ("depth", ())
    assert waited(changed(feed, found).run()) < 0.02


def test_bursts_are_evened_out_by_depth():
    stages = [Stage("read", 12, io_s=0.006, spread=lambda source: source.lognormvariate(-0.5, 1.0))]
    feed = FeedOnPaper(stages, 0.02)
    found = find(feed.run(), setting_of(feed))
    assert (found.limit, found.depth) == ("depth", 4)
    assert waited(changed(feed, found).run()) < waited(feed.run()) / 3


def test_a_feed_that_keeps_up_says_how_fast_it_could_be():
    feed = FeedOnPaper([Stage("read", 4, io_s=0.002)], 0.03)
    found = find(feed.run(), setting_of(feed))
    assert found.limit == "none"
    assert found.pace_s == pytest.approx(0.008, rel=0.01)
    assert waited(replace(feed, step_s=0.007).run()) > 0.05
    assert waited(replace(feed, step_s=0.009).run()) < 0.01
