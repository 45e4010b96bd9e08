"""Why a consumer waits: whose fault its waiting is, what limits the feed, and how many workers would keep up.

Numbers in, numbers out; `_explain` says them in words.

A feed is a chain of *crews*: workers that do one stage, or several one after the other. A crew of `n` workers whose
work on a batch takes `work_s` seconds can give a batch every `work_s / n`. The slowest crew sets the pace, and its
workers are busy all the time; the others have time to spare, however much they do in total. So waiting is not shared
out by the time that stages take, but by what it would take to end it:

- What the slowest crew takes longer than the second slowest, or than the consumer, is its own. What the two slowest
  take longer than the third is owed to both in equal parts, and so on: the Shapley value of the game in which each set
  of crews, were the others infinitely fast, would make the consumer wait for its slowest ("airport game", Littlechild
  and Owen 1973).
- Waiting beyond that comes from chance (a slow sample now and then), where no crew is busy all the time. It is shared
  out by how long queues get: `u / (1 - u)` for a crew that is busy the part `u` of the time (M/M/1).
- Inside a crew the stages have shares by time: its worker does one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.feed._statistics import FeedStatistics, StageTimes

Limit: TypeAlias = Literal[
    "unknown",
    "none",
    "stage",
    "inline",
    "source",
    "interpreter",
    "processors",
    "others",
    "hand-over",
    "depth",
    "slots",
    "link",
]

_UNNOTICED = 0.02
"""A consumer that waits for less than that part of the time is kept up with."""
_FEW = 3
"""Batches after the first ones without which nothing can be said."""
_SPARE = 0.9
"""Workers are recommended so that they are busy for that part of the time: chance needs some room."""
_BUSY = 0.75
"""A crew that is busy for less than that part of the time is not what limits a feed."""
_FULL = 0.9
"""Processors that are busy for that part of the time are taken."""
_CONTENDED = 0.25
"""Processors are contended where threads that could run are in line for that part of the time, ..."""
_CONTENDED_WORK = 0.15
"""... and workers for that part of theirs, whether they could run or not: else they wait for something else."""
_FEWEST_S = 0.02
"""Less time in line for processors says nothing."""
_QUICK_S = 0.0002
"""Batches that come faster than that are quicker than the threads that hand them over."""
_IDLE_STEP = 0.05
"""A consumer whose own work is less than that part of the time does none that a feed could keep up with."""
_MOST_TIMES = 4
"""A consumer that does nothing says nothing about how many workers would do: at most so many times as many."""
_MOST_BUSY = 0.99
"""So that the length of a queue stays finite."""
_LOCK_LATE_S = 0.001
"""A thread that wakes that late waits for the interpreter lock, whose holder keeps it for 5 ms. Else it is 0.1 ms."""
_LOCK_PROCESSORS = (0.85, 1.2)
"""Processors that threads use together when one of them runs at a time; what they call outside the lock adds a bit."""


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What the numbers of a feed do not say.

    Attributes:
        batch_size: Samples in a batch.
        depth: Batches made ahead.
        processors: Processors that the process may use.
        serial: Whether the source is read by one worker at a time, whatever their number.
        locked: Whether this Python runs one thread at a time.
        device: Where batches go.
        chosen: What `workers="auto"` chose, and why.
        idle: Whether the consumer is known to do nothing with its batches; else that is told from the time it takes.
    """

    batch_size: int
    depth: int
    processors: float
    serial: bool = False
    locked: bool = True
    device: str = "host"
    chosen: str = ""
    idle: bool = False


@final
@dataclass(frozen=True, slots=True)
class StageLoad:
    """What one stage has to do with the waiting.

    Attributes:
        name: Its name.
        kind: `threads`, `processes` or `inline`.
        workers: How many do it.
        crew: The stage whose workers do it too; its own name if it has workers of its own.
        share: Its part of the consumer's waiting, 0 to 1.
        busy: The part of the time for which its workers were in it, 0 to 1.
        work_s: Seconds that a worker spends in it for one batch.
        computing: The part of the time for which its crew's workers had a processor; None if that is not known.
    """

    name: str
    kind: str
    workers: int
    crew: str
    share: float
    busy: float
    work_s: float
    computing: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Findings:
    """What can be told from the numbers.

    Attributes:
        limit: What keeps the feed from being faster than its consumer; `none` if it is, `unknown` after few batches.
        stage: The stage that sets the pace, or whose crew does.
        wait: The part of the time that the consumer waited, first batches apart, 0 to 1.
        step_s: The consumer's own time for a batch.
        pace_s: Seconds in which the feed gives a batch; a shorter step waits.
        machine_s: Seconds that the processors would take for a batch and its step if they all worked on it.
        stages: Each stage's part in the waiting.
        other: Parts in it of what is no stage: `slots` (the consumer's batches hold them), `link` (copies to the device
            do), `wake-up` (a batch was there, and the consumer's thread could not run yet).
        workers: How many workers each crew should have, by its first stage, where that differs from what it has.
        depth: Batches that should be made ahead, or None if no more than now.
        keeps_up: Whether the feed would keep up then, as far as can be told.
        processors_busy: Processors that the program used on average; None if that is not known.
        idle_consumer: Whether the consumer does nothing with its batches, so that nothing could keep up with it.
        maybe_locked: Whether threads might wait for each other though nothing proves it.
    """

    limit: Limit
    stage: str = ""
    wait: float = 0.0
    step_s: float = 0.0
    pace_s: float = 0.0
    machine_s: float = 0.0
    stages: tuple[StageLoad, ...] = ()
    other: tuple[tuple[str, float], ...] = ()
    workers: tuple[tuple[str, int], ...] = ()
    depth: int | None = None
    keeps_up: bool = True
    processors_busy: float | None = None
    idle_consumer: bool = False
    maybe_locked: bool = False


@final
@dataclass(frozen=True, slots=True)
class _Crew:
    """Stages that share their workers; seconds are for one batch."""

    stages: tuple[StageTimes, ...]
    work_s: float
    cpu_s: float | None

    @property
    def name(self) -> str:
        return self.stages[0].name

    @property
    def workers(self) -> int:
        return self.stages[0].workers

    @property
    def pace_s(self) -> float:
        return self.work_s / self.workers


@final
@dataclass(frozen=True, slots=True)
class _Means:
    """Seconds for one batch in the steady state."""

    batch_s: float
    step_s: float
    wait_s: float
    slot_s: float
    link_s: float
    wake_s: float
    process_s: float


def find(statistics: FeedStatistics, setting: Setting) -> Findings:
    """Return what can be told.

    Args:
        statistics: Of a feed, or what it did in some time.
        setting: The rest.
    """
    if statistics.batches - statistics.passes < _FEW or statistics.elapsed_s <= statistics.start_s:
        return Findings("unknown")
    means, crews = _means(statistics), _crews(statistics)
    wait = means.wait_s / means.batch_s if means.batch_s > 0 else 0.0
    stages, other = _shares(means, crews)
    slowest = max(crews, key=lambda crew: crew.pace_s, default=None)
    found = Findings(
        "none",
        wait=wait,
        step_s=means.step_s,
        pace_s=means.batch_s if wait >= _UNNOTICED else _possible_s(means, crews, setting),
        machine_s=_machine_s(means, crews, setting),
        stages=stages,
        other=other,
        stage=slowest.name if slowest is not None else "",
        processors_busy=_processors_busy(means, crews),
        idle_consumer=setting.idle or means.step_s < _IDLE_STEP * means.batch_s,
    )
    if wait < _UNNOTICED or slowest is None:
        return found
    limit = _limit(means, slowest, setting, statistics, found.processors_busy)
    return _with_change(replace(found, limit=limit), means, crews, setting)


def _means(statistics: FeedStatistics) -> _Means:
    """Leave out the wait for the first batch of each pass: nothing can be there before it."""
    steady = statistics.batches - statistics.passes
    wait_s = max(0.0, statistics.wait_s - statistics.start_s)
    slot_s = min(statistics.wait_slot_s, wait_s)
    return _Means(
        batch_s=(statistics.elapsed_s - statistics.start_s) / steady,
        step_s=max(0.0, statistics.elapsed_s - statistics.wait_s) / statistics.batches,
        wait_s=wait_s / steady,
        slot_s=slot_s / steady,
        link_s=min(statistics.wait_link_s, slot_s) / steady,
        wake_s=min(statistics.wake_s, wait_s - slot_s) / statistics.batches,
        process_s=statistics.process_s / statistics.batches,
    )


def _crews(statistics: FeedStatistics) -> list[_Crew]:
    found: dict[str, list[StageTimes]] = {}
    for stage in statistics.stages:
        found.setdefault(stage.crew or stage.name, []).append(stage)
    return [_crew(stages, statistics.batches) for stages in found.values()]


def _crew(stages: Sequence[StageTimes], batches: int) -> _Crew:
    known = [stage.cpu_s for stage in stages if stage.cpu_s is not None]
    work_s = sum(stage.busy_s for stage in stages) / batches
    return _Crew(tuple(stages), work_s, sum(known) / batches if known else None)


def _processors_busy(means: _Means, crews: Sequence[_Crew]) -> float | None:
    """Return what this process and the feed's own ones used."""
    if means.process_s <= 0 or means.batch_s <= 0:
        return None
    theirs = sum(crew.cpu_s or 0.0 for crew in crews if crew.stages[0].kind == "processes")
    return (means.process_s + theirs) / means.batch_s


def _possible_s(means: _Means, crews: Sequence[_Crew], setting: Setting) -> float:
    """Return how fast a feed that keeps up could be: as its slowest crew, and as its processors."""
    fastest = max((crew.pace_s for crew in crews), default=0.0)
    used = sum(crew.cpu_s or 0.0 for crew in crews)
    return min(max(fastest, used / setting.processors), max(means.step_s, fastest))


# ------------------------------------------------------------ whose fault it is


def _shares(means: _Means, crews: Sequence[_Crew]) -> tuple[tuple[StageLoad, ...], tuple[tuple[str, float], ...]]:
    whole = means.wait_s
    rest = max(0.0, whole - means.slot_s - means.wake_s)
    of_crews = _split(rest, [crew.pace_s for crew in crews], means, inline=_inline(crews))
    loads = []
    for crew, part in zip(crews, of_crews, strict=True):
        computing = None if crew.cpu_s is None else min(1.0, _part(crew.cpu_s / crew.workers, means.batch_s))
        for stage in crew.stages:
            work_s = crew.work_s * _part(stage.busy_s, sum(one.busy_s for one in crew.stages))
            share = _part(part, whole) * _part(work_s, crew.work_s)
            busy = min(1.0, _part(work_s / stage.workers, means.batch_s))
            load = StageLoad(stage.name, stage.kind, stage.workers, crew.name, share, busy, work_s, computing)
            loads.append(load)
    other = {"slots": means.slot_s - means.link_s, "link": means.link_s, "wake-up": means.wake_s}
    return tuple(loads), tuple((name, _part(seconds, whole)) for name, seconds in other.items() if seconds > 0)


def _split(whole: float, paces: Sequence[float], means: _Means, *, inline: bool) -> list[float]:
    """Share out `whole` among crews that give a batch in `paces`."""
    if inline:  # one after the other on the consumer's thread: each second of it is waited for
        return [whole * _part(pace, sum(paces)) for pace in paces]
    owed = _airport(paces, means.step_s)
    by_pace = min(whole, sum(owed))
    queues = [_queue(_part(pace, means.batch_s)) for pace in paces]
    return [
        by_pace * _part(mine, sum(owed)) + (whole - by_pace) * _part(queue, sum(queues))
        for mine, queue in zip(owed, queues, strict=True)
    ]


def _airport(paces: Sequence[float], ground: float) -> list[float]:
    """Return each one's Shapley value of `max(paces) - ground`."""
    owed = [0.0] * len(paces)
    above = sorted((pace, index) for index, pace in enumerate(paces) if pace > ground)
    level = ground
    for done, (pace, _) in enumerate(above):
        for _, index in above[done:]:
            owed[index] += (pace - level) / (len(above) - done)
        level = pace
    return owed


def _queue(busy: float) -> float:
    busy = min(_MOST_BUSY, busy)
    return busy / (1.0 - busy)


def _part(one: float, whole: float) -> float:
    return one / whole if whole > 0 else 0.0


def _inline(crews: Sequence[_Crew]) -> bool:
    return bool(crews) and crews[0].stages[0].kind == "inline"


# ------------------------------------------------------------ what limits it


def _limit(
    means: _Means, slowest: _Crew, setting: Setting, statistics: FeedStatistics, processors_busy: float | None
) -> Limit:
    if means.slot_s > means.wait_s / 2:
        return "link" if means.link_s > means.slot_s / 2 else "slots"
    if slowest.stages[0].kind == "inline":
        return "inline"
    if processors_busy is not None and processors_busy >= _FULL * setting.processors:
        return "processors"
    if _contended(statistics):
        return "others"
    if slowest.stages[0].kind == "threads" and setting.locked and _lock_bound(means, statistics, processors_busy):
        return "interpreter"
    return _limit_of_crew(means.batch_s, slowest, setting, statistics)


def _contended(statistics: FeedStatistics) -> bool:
    busy_s = sum(stage.busy_s for stage in statistics.stages)
    return _in_line(statistics) and statistics.delayed_s > _CONTENDED_WORK * busy_s


def _in_line(statistics: FeedStatistics) -> bool:
    could_run_s = statistics.ran_s + statistics.delayed_s
    return statistics.delayed_s > max(_FEWEST_S, _CONTENDED * could_run_s)


def _limit_of_crew(batch_s: float, slowest: _Crew, setting: Setting, statistics: FeedStatistics) -> Limit:
    busy = _part(slowest.pace_s, batch_s)
    if busy < _FULL and statistics.slotless > statistics.batches / 2:
        return "slots"
    if busy < _BUSY:
        if _in_line(statistics):  # who is not busy may not get to it
            return "others"
        return "hand-over" if batch_s < _QUICK_S else "depth"
    return "source" if setting.serial and slowest.name == "read" else "stage"


def _lock_bound(means: _Means, statistics: FeedStatistics, processors_busy: float | None) -> bool:
    """Tell whether threads wait for each other: they use one processor together, and who wakes up waits for a turn."""
    if processors_busy is None or statistics.wakes < _FEW:
        return False
    fewest, most = _LOCK_PROCESSORS
    late_s = statistics.wake_s / statistics.wakes
    return late_s >= _LOCK_LATE_S and fewest <= _part(means.process_s, means.batch_s) <= most


def _maybe_locked(found: Findings, means: _Means, crews: Sequence[_Crew], target_s: float, setting: Setting) -> bool:
    """Tell whether it could be so, or become so with more threads, though who wakes up need not wait.

    Threads that use several processors at a time do not hold the lock for long; what they compute then is no sign.
    """
    slowest = next(crew for crew in crews if crew.name == found.stage)
    cpu_s = slowest.cpu_s
    if slowest.stages[0].kind != "threads" or cpu_s is None or cpu_s >= _BUSY * slowest.work_s or not setting.locked:
        return False
    fewest, most = _LOCK_PROCESSORS
    return _part(means.process_s, means.batch_s) <= most and cpu_s >= fewest * target_s


# ------------------------------------------------------------ what would end it


def _with_change(found: Findings, means: _Means, crews: Sequence[_Crew], setting: Setting) -> Findings:
    """Add what to change: so many workers that each crew is a bit faster than the consumer, and slots for them."""
    if found.limit in {"slots", "link", "others", "hand-over"}:
        return replace(found, keeps_up=False)
    wanted_s = means.step_s if not found.idle_consumer else 0.0
    target_s = max(wanted_s, found.machine_s)
    if found.idle_consumer:
        target_s = max(target_s, max(crew.pace_s for crew in crews) / (_SPARE * _MOST_TIMES))
    workers = {crew.name: _workers(crew, target_s, found.limit, setting) for crew in crews}
    anyhow = {found.stage} if found.limit in {"interpreter", "inline"} else set()
    changed = tuple(
        (crew.name, workers[crew.name]) for crew in crews if workers[crew.name] > crew.workers or crew.name in anyhow
    )
    if found.limit in {"processors", "source"}:
        return replace(found, workers=tuple(one for one in changed if one[0] != found.stage), keeps_up=False)
    if found.limit == "stage" and not changed:  # the machine has no more to give
        return replace(found, limit="processors", keeps_up=False)
    return replace(
        found,
        workers=changed if found.limit != "depth" else (),
        depth=_depth(crews, target_s, found.limit, setting),
        keeps_up=found.machine_s <= _SPARE * wanted_s,
        maybe_locked=found.limit in {"stage", "depth"} and _maybe_locked(found, means, crews, target_s, setting),
    )


def _machine_s(means: _Means, crews: Sequence[_Crew], setting: Setting) -> float:
    """Return the time that a batch takes when every processor works on it: the feed's part and the consumer's."""
    feed_s = sum(crew.cpu_s or 0.0 for crew in crews)
    in_process_s = sum(crew.cpu_s or 0.0 for crew in crews if crew.stages[0].kind != "processes")
    consumer_s = max(0.0, means.process_s - in_process_s)
    return (feed_s + consumer_s) / setting.processors


def _workers(crew: _Crew, target_s: float, limit: Limit, setting: Setting) -> int:
    work_s = crew.work_s
    if limit == "interpreter" and crew.cpu_s is not None:  # the rest was waiting for each other
        work_s = crew.cpu_s
        return max(1, min(math.ceil(work_s / (_SPARE * target_s)), math.ceil(setting.processors)))
    return max(1, math.ceil(round(work_s / (_SPARE * target_s), 6)))


def _depth(crews: Sequence[_Crew], target_s: float, limit: Limit, setting: Setting) -> int | None:
    """Return how many batches must be on their way so that there is work for everybody (Little's law), if more.

    While the consumer works, one less than `depth` are being made. Against chance there is no formula: twice as many.
    """
    samples = sum(crew.work_s for crew in crews) / (_SPARE * target_s)
    depth = 2 + math.ceil(samples / setting.batch_size)
    if limit == "depth":
        depth = max(depth, 2 * setting.depth)
    return depth if depth > setting.depth else None
