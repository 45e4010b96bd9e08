"""What a feed is doing, every so often, while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import warnings
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, final

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from interlock.feed._statistics import FeedStatistics

    Seen: TypeAlias = tuple[FeedStatistics, int]
    To: TypeAlias = str | os.PathLike[str] | Callable[["Record"], object]

W = TypeVar("W")

_JOIN_S = 5.0
"""How long the end of a report waits for a record that is being written."""


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


@final
class Report(Generic[W]):
    """Tells what a feed does while a block runs, on a thread of its own that never keeps the feed alive.

    Args:
        feed: What to tell about.
        look: Returns its statistics and the number of the epoch that it is in. Called on the report's thread.
        to: A file that gets a JSON object per line, or what is called with each `Record`.
        every_s: How often.

    Raises:
        UsageError: `to` is neither, or in no folder; `every_s` is not positive.
    """

    def __init__(self, feed: W, look: Callable[[W], Seen], to: To, every_s: float) -> None:
        if not every_s > 0:
            raise UsageError(f"every_s is {every_s}", hint="give a positive number of seconds")
        self._look = look
        self._tell = _teller(to)
        self._every_s = every_s
        self._stop = threading.Event()
        self._feed = weakref.ref(feed, lambda _: self._stop.set())
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        feed = self._feed()
        if feed is not None:
            meter = Meter(self._look(feed)[0])
            arguments = (self._feed, self._look, self._tell, meter, self._stop, self._every_s)
            self._thread = threading.Thread(target=_run, args=arguments, name="interlock-report", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)


def _run(
    feed_of: weakref.ref[W],
    look: Callable[[W], Seen],
    tell: Callable[[Record], object],
    meter: Meter,
    stop: threading.Event,
    every_s: float,
) -> None:
    warned = False
    last = False
    while not last:
        last = stop.wait(every_s)
        seen = _seen(feed_of, look)
        if seen is None:
            return
        try:
            tell(meter.read(*seen, last=last))
        except Exception as error:  # noqa: BLE001 - a report that fails is no reason to end what it tells about
            if not warned:
                _warn(error)
            warned = True


def _seen(feed_of: weakref.ref[W], look: Callable[[W], Seen]) -> Seen | None:
    """Look at the feed, None if it is gone. Holds it for no longer than that."""
    feed = feed_of()
    return None if feed is None else look(feed)


def _warn(error: Exception) -> None:
    message = f"a record of the feed could not be told: {type(error).__name__}: {error}; not said again"
    with contextlib.suppress(RuntimeWarning):  # where warnings are errors, nobody could catch it on this thread
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _teller(to: To) -> Callable[[Record], object]:
    if callable(to):
        return to
    if not isinstance(to, (str, os.PathLike)):
        raise UsageError(
            f"to is of type {type(to).__name__}", hint="give the path of a file, or a function of a Record"
        )
    path = Path(to)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"a report cannot go to {path}", why="it is a folder, or in none", hint="give a file")

    def append(record: Record) -> None:
        with path.open("a", encoding="utf-8") as file:  # each time: it may be moved away in between
            file.write(json.dumps(record.as_dict()) + "\n")

    return append
