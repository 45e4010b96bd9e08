"""What limits a drain, and how many writers would keep up. Numbers in, numbers out; `_explain` says them in words.

A producer puts rows, writers take them to the storage, and a budget of bytes lies between: so whoever is slower is busy
all the time, and the other waits for it. If the producer waits and writers do too, it is the budget that is too small
to let them work at the same time. What busy writers do most is what limits them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from interlock.drain._statistics import DrainStatistics

Limit: TypeAlias = Literal[
    "unknown",
    "producer",
    "put",
    "copy",
    "device",
    "budget",
    "flush",
    "check",
    "encoder",
    "function",
    "interpreter",
    "processors",
    "storage",
    "hash",
    "commits",
]

_SHORTEST_S = 0.005
"""Nothing can be said about less."""
UNNOTICED = 0.05
"""A producer that waits for less than that part of the time is kept up with: there is little to gain."""
_MUCH = 0.2
"""What putting itself takes is part of the producer's work, unless it is that part of it."""
_IDLE = 0.2
"""Writers that have nothing to do for that part of the time are not what limits a drain, if it is a steady one."""
_OFTEN = 3
"""So many flushes are a habit, and not the end of a run."""
_SPARE = 0.9
"""Writers are recommended so that they are busy for that part of the time: chance needs some room."""
_MOST_TIMES = 4
"""A producer that does nothing says nothing about how many writers would do: at most so many times as many."""
FULL = 0.9
"""Processors that are busy for that part of the time are taken."""
_SMALL_SHARD = 0.25
"""Shards of less than that part of `shard_bytes` are small."""
_FEW_SHARDS = 3
"""Fewer say nothing about shards."""


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """What the numbers of a drain do not say.

    Attributes:
        scheme: The kind of sink: `parquet` and so on, `null`, or `function`.
        shard_bytes: Size at which a shard is committed.
        processors: Processors that the process may use.
        in_python: Whether the sink's format is made by Python code, so that one thread at a time makes it.
        several: Whether a drain to this sink may have several writers.
        producer: What makes the rows, in words.
    """

    scheme: str
    shard_bytes: int
    processors: float
    in_python: bool = False
    several: bool = True
    producer: str = "producer"


@final
@dataclass(frozen=True, slots=True)
class Findings:
    """What can be told from the numbers.

    Attributes:
        limit: What keeps rows from being committed faster; `unknown` after too short a time.
        wait: The part of the time for which the drain kept the producer, 0 to 1.
        waits: The parts of that: `slot`, `flush`, `copy` and `put`. Together 1, if there was any.
        writers: The parts of the writers' time since the first put: `idle`, `land` and so on. Together 1.
        wanted: How many writers there should be, if others would be better.
        keeps_up: Whether the drain would keep up with its producer then, as far as can be told.
        processors_busy: Processors that the program used on average.
    """

    limit: Limit
    wait: float = 0.0
    waits: tuple[tuple[str, float], ...] = ()
    writers: tuple[tuple[str, float], ...] = ()
    wanted: int | None = None
    keeps_up: bool = False
    processors_busy: float = 0.0

    def busy(self, *phases: str) -> float:
        """Return the part of the writers' time that was in some phases."""
        return sum(part for name, part in self.writers if name in phases)


def find(statistics: DrainStatistics, setting: Setting) -> Findings:
    """Return what can be told.

    Args:
        statistics: Of a drain, or what it did in some time.
        setting: The rest.
    """
    writers = _of_writers(statistics)
    if not statistics.rows_put or statistics.elapsed_s < _SHORTEST_S or not sum(writers.values()):
        return Findings("unknown", writers=_shares(writers))
    waits = {
        "slot": statistics.wait_slot_s,
        "flush": statistics.flush_s,
        "copy": statistics.copy_s,
        "put": statistics.put_s,
    }
    found = Findings(
        "producer",
        wait=sum(waits.values()) / statistics.elapsed_s,
        waits=_shares(waits),
        writers=_shares(writers),
        processors_busy=statistics.process_s / statistics.elapsed_s,
    )
    limit = _limit(found, statistics, setting)
    return _with_change(replace(found, limit=limit), statistics, setting)


def _of_writers(statistics: DrainStatistics) -> dict[str, float]:
    """Return the writers' seconds without those before the first put: nothing could be there."""
    seconds = statistics.of_writers
    return {**seconds, "idle": max(0.0, seconds["idle"] - statistics.idle_start_s)}


def _shares(seconds: dict[str, float]) -> tuple[tuple[str, float], ...]:
    whole = sum(seconds.values())
    return tuple((name, one / whole) for name, one in seconds.items()) if whole > 0 else ()


# ------------------------------------------------------------ what limits it


def _limit(found: Findings, statistics: DrainStatistics, setting: Setting) -> Limit:
    if found.wait < UNNOTICED:
        return "producer"
    own_s, others_s = statistics.put_s + statistics.copy_s, statistics.wait_slot_s + statistics.flush_s
    if own_s >= max(others_s, _MUCH * statistics.elapsed_s):
        return "copy" if statistics.copy_s >= statistics.put_s else "put"
    if others_s < UNNOTICED * statistics.elapsed_s:
        return "producer"
    limit = _limit_of_pauses(statistics) if found.busy("idle") >= _IDLE else None
    return limit or _limit_of_writers(found, statistics, setting)


def _limit_of_pauses(statistics: DrainStatistics) -> Limit | None:
    """Return why both producer and writers wait; None if that is only the end of a run."""
    if statistics.wait_slot_s >= statistics.flush_s:
        return "budget"
    if statistics.flushes >= _OFTEN:
        return "flush"
    return "producer" if statistics.flush_s < statistics.loop_s else None


def _limit_of_writers(found: Findings, statistics: DrainStatistics, setting: Setting) -> Limit:
    encoder: Limit = "function" if setting.scheme == "function" else "interpreter" if setting.in_python else "encoder"
    parts: dict[Limit, float] = {
        "device": found.busy("land"),
        encoder: found.busy("encode"),
        "storage": found.busy("write", "fsync"),
        "commits": found.busy("commit"),
        "hash": found.busy("hash"),
        "check": found.busy("check"),
    }
    limit = max(parts, key=lambda name: parts[name])
    for_each_shard = found.busy("fsync", "commit")
    if limit in {"storage", "commits"} and _are_small(statistics, setting) and for_each_shard > found.busy("write"):
        return "commits"
    return "storage" if limit == "commits" else limit


def _are_small(statistics: DrainStatistics, setting: Setting) -> bool:
    if statistics.shards < _FEW_SHARDS:
        return False
    return statistics.bytes_written / statistics.shards < _SMALL_SHARD * setting.shard_bytes


# ------------------------------------------------------------ what would end it


def _with_change(found: Findings, statistics: DrainStatistics, setting: Setting) -> Findings:
    """Add how many writers would do: so many that they are a bit faster than the producer, and than the storage."""
    if found.limit not in {"encoder", "hash", "check"} or not setting.several:
        return found
    most = min(_MOST_TIMES * statistics.writers, math.floor(setting.processors))
    if most <= statistics.writers or found.processors_busy >= FULL * setting.processors:
        return replace(found, limit="processors")
    work_s = sum(seconds for name, seconds in statistics.of_writers.items() if name not in {"idle", "land"})
    producer_s = statistics.loop_s + statistics.put_s + statistics.copy_s
    target_s = max(producer_s, statistics.write_s + statistics.fsync_s, statistics.process_s / setting.processors)
    enough = math.ceil(round(work_s / (_SPARE * target_s), 6)) if target_s > 0 else most + 1
    wanted = min(enough, most)
    if wanted <= statistics.writers:
        return found
    return replace(found, wanted=wanted, keeps_up=wanted == enough and target_s == producer_s)
