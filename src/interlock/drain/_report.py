"""What a drain is doing, every so often, while it runs."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._words import counted, percent
from interlock.drain._attribution import Findings, find
from interlock.drain._explain import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from interlock.drain._attribution import Limit, Setting
    from interlock.drain._drain import Drain
    from interlock.drain._statistics import DrainStatistics

_OF_THE_STORAGE = ("write", "fsync", "commit")
_SHOWN: dict[Limit, tuple[str, tuple[str, ...]]] = {
    "device": ("device", ("land",)),
    "check": ("check", ("check",)),
    "encoder": ("encoder", ("encode",)),
    "interpreter": ("encoder", ("encode",)),
    "processors": ("encoder", ("encode", "check", "hash")),
    "function": ("function", ("encode",)),
    "storage": ("storage", _OF_THE_STORAGE),
    "commits": ("commits", _OF_THE_STORAGE),
    "hash": ("hash", ("hash",)),
    "budget": ("budget too small", ()),
    "flush": ("many flushes", ()),
    "put": ("taking rows", ()),
    "copy": ("copying rows", ()),
}
"""What to call it, and the phases of writers that it consists of."""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What a drain did since the record before, and so far. Nothing of the data is in it.

    Attributes:
        time_s: When, in seconds since 1970.
        seconds: How long ago the record before was, or the begin of the report.
        rows_put: Rows put so far.
        rows_committed: Rows that this run committed so far.
        rows_failed: Rows that failed so far and were not committed since.
        bytes_written: Bytes of the files of committed shards so far.
        shards: Shards committed so far.
        rows_per_s: Rows put a second, since the record before.
        mb_per_s: Megabytes of rows put a second since then.
        producer: Parts of the producer's time since then, together 1: `loop` is its own, `slot`, `copy`, `put` and
            `flush` were spent in the drain. Empty if nothing was put yet.
        writer: Parts of the writers' time since then, together 1: `idle`, `land` and so on.
        limit: What limited the drain since then; see `Explanation`.
        writers: Threads that write.
        held_bytes: Bytes of the budget in use.
        budget_bytes: The budget.
        last: Whether the report ends with it.
    """

    time_s: float
    seconds: float
    rows_put: int
    rows_committed: int
    rows_failed: int
    bytes_written: int
    shards: int
    rows_per_s: float
    mb_per_s: float
    producer: dict[str, float]
    writer: dict[str, float]
    limit: Limit
    writers: int
    held_bytes: int
    budget_bytes: int
    last: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return it as one line for people."""
        parts = [f"{counted(self.rows_committed, 'row', 'rows')} committed", f"{self.rows_per_s:,.0f} rows/s"]
        parts += [f"{self.mb_per_s:,.1f} MB/s", limited(self.limit, self.writer, self.writers)]
        parts.append(f"writer: {listed(tuple(self.writer.items()))}")
        if self.rows_failed:
            parts.append(f"{self.rows_failed:,} failed")
        return ", ".join(one for one in parts if one)


def limited(limit: Limit, writer: Mapping[Any, float], writers: int) -> str:
    """Return what limits a drain in some words: `encoder 71 %, 2 writers`.

    Args:
        limit: What does.
        writer: Parts of the writers' time.
        writers: How many there are.
    """
    name, phases = _SHOWN.get(limit, (limit, ()))
    if limit == "unknown":
        return ""
    if not phases:
        return str(name)
    return f"{name} {percent(sum(writer[phase] for phase in phases))}, {counted(writers, 'writer', 'writers')}"


class Meter:
    """Makes records: each is about the time since the one before.

    Args:
        begin: Statistics at the begin.
        setting: What they do not say.
        clock: Seconds, only ever rising.
    """

    def __init__(self, begin: DrainStatistics, setting: Setting, clock: Callable[[], float] = time.monotonic) -> None:
        self._before = begin
        self._setting = setting
        self._clock = clock
        self._before_s = clock()

    def read(self, statistics: DrainStatistics, *, last: bool = False) -> Record:
        """Return a record.

        Args:
            statistics: Of now.
            last: As in `Record`.
        """
        now_s = self._clock()
        seconds = now_s - self._before_s
        done = statistics.since(self._before)
        self._before, self._before_s = statistics, now_s
        rate = 1.0 / seconds if seconds > 0 else 0.0
        found: Findings = find(done, self._setting)
        return Record(
            time_s=round(time.time(), 3),
            seconds=round(seconds, 3),
            rows_put=statistics.rows_put,
            rows_committed=statistics.rows_committed,
            rows_failed=statistics.rows_failed,
            bytes_written=statistics.bytes_written,
            shards=statistics.shards,
            rows_per_s=round(done.rows_put * rate, 1),
            mb_per_s=round(done.bytes_put * rate / 1e6, 3),
            producer=_parts(done.of_producer),
            writer=_parts(done.of_writers),
            limit=found.limit,
            writers=statistics.writers,
            held_bytes=statistics.held_bytes,
            budget_bytes=statistics.budget_bytes,
            last=last,
        )


def _parts(seconds: dict[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    return {name: round(one / whole, 4) for name, one in seconds.items()} if whole > 0 else {}


def begin_report(drain: Drain) -> Callable[[Drain, bool], Record]:
    """Return what makes the records of a drain from now on."""
    meter = Meter(drain.statistics(), drain.explain().setting)

    def read(drain: Drain, last: bool) -> Record:  # noqa: FBT001 - as reports call it
        return meter.read(drain.statistics(), last=last)

    return read
