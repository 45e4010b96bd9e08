"""What a feed is doing, every so often, while it runs."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.feed._statistics import FeedStatistics


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What a feed did since the record before, and so far. Nothing of the data is in it.

    Attributes:
        time_s: When, in seconds since 1970.
        seconds: How long ago the record before was, or the begin of the report.
        epoch: Number of the epoch that is read, or was last.
        batches: Batches handed over so far.
        samples: Samples in them.
        failed: Samples so far that their source could not give.
        samples_per_s: Rate since the record before.
        mb_per_s: Megabytes a second since then.
        wait: Part of the consumer's time since then in which it waited, 0 to 1; None if no batch came.
        busy: Part of the time since then for which the workers of each stage were in it, 0 to 1.
        slots: Slots made.
        slots_lent: Slots whose batch is still in use.
        last: Whether the report ends with it.
    """

    time_s: float
    seconds: float
    epoch: int
    batches: int
    samples: int
    failed: int
    samples_per_s: float
    mb_per_s: float
    wait: float | None
    busy: dict[str, float]
    slots: int
    slots_lent: int
    last: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return it as one line for people."""
        parts = [f"epoch {self.epoch}", f"{self.samples:,} samples", f"{self.samples_per_s:,.0f} samples/s"]
        parts.append(f"{self.mb_per_s:,.1f} MB/s")
        parts.append("no batch came" if self.wait is None else f"waited {100 * self.wait:.0f} ms of 100")
        if self.busy:
            parts.append("busy: " + " ".join(f"{name} {100 * busy:.0f} %" for name, busy in self.busy.items()))
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        return ", ".join(parts)


class Meter:
    """Makes records: each is about the time since the one before.

    Args:
        begin: Statistics at the begin.
        clock: Seconds, only ever rising.
    """

    def __init__(self, begin: FeedStatistics, clock: Callable[[], float] = time.monotonic) -> None:
        self._before = begin
        self._clock = clock
        self._before_s = clock()

    def read(self, statistics: FeedStatistics, epoch: int, *, last: bool = False) -> Record:
        """Return a record.

        Args:
            statistics: Of now.
            epoch: Number of the epoch that is read.
            last: As in `Record`.
        """
        now_s = self._clock()
        seconds = now_s - self._before_s
        done = statistics.since(self._before)
        self._before, self._before_s = statistics, now_s
        rate = 1.0 / seconds if seconds > 0 else 0.0
        return Record(
            time_s=round(time.time(), 3),
            seconds=round(seconds, 3),
            epoch=epoch,
            batches=statistics.batches,
            samples=statistics.samples,
            failed=statistics.failed,
            samples_per_s=round(done.samples * rate, 1),
            mb_per_s=round(done.nbytes * rate / 1e6, 3),
            wait=round(_within(done.wait_s / done.elapsed_s), 4) if done.elapsed_s > 0 else None,
            busy={stage.name: round(_within(stage.busy_s * rate / stage.workers), 4) for stage in done.stages},
            slots=statistics.slots,
            slots_lent=statistics.slots_lent,
            last=last,
        )


def _within(part: float) -> float:
    """A batch that was made in the time before may be counted in this one."""
    return min(1.0, max(0.0, part))
