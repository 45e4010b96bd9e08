"""`workers="auto"`: a few samples are made by one thread and by two, and what that took decides who reads.

`choose` is arithmetic on what was measured; `measure` takes the times.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._processors import processors
from interlock.feed._layout import Layout
from interlock.feed._process_errors import why_unsendable
from interlock.feed._recipe import Recipe
from interlock.feed._workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock.feed._samples import Samples
    from interlock.feed._stages import Chain

SMALL_BATCH_S = 2e-4
"""A batch that is made sooner costs less to make than to have made by others: two threads wake up for it."""
CHEAP_S = 2e-4
"""A sample that comes sooner is not worth a process, which takes some hundred milliseconds to start, and memory."""
SCALES = 1.3
"""Two threads that are faster than one by this much are let be: what disturbs a measurement makes it look worse."""

_SCHEDULE = Path("/proc/thread-self/schedstat")
_LEAST_ROUND_S = 0.04
"""Some of the turns that the interpreter gives to threads which want it, of 5 ms each."""
_BUDGET_S = 0.4
_ROUNDS = 5
_MOST_SAMPLES = 1000


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """What some samples took.

    Attributes:
        samples: How many samples a thread made in a round.
        alone_s: Seconds of each round in which one thread made them.
        together_s: Seconds of each round in which two threads made so many each.
        failure: Why nothing could be measured; empty if it could.
    """

    samples: int
    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]
    failure: str = ""

    @property
    def sample_s(self) -> float:
        """Seconds of a sample, on a thread that is alone."""
        return min(self.alone_s) / self.samples

    @property
    def speedup(self) -> float:
        """How many times as fast two threads are as one. The shortest rounds count: they were disturbed least."""
        return 2 * min(self.alone_s) / max(min(self.together_s), 1e-9)


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """Who reads, and why.

    Attributes:
        workers: Who.
        why: A sentence without its end, for people.
    """

    workers: Workers
    why: str

    def __str__(self) -> str:
        return f"{self.workers}: {self.why}"


def choose(measured: Measured, count: int, batch_size: int, available: float, unsendable: Callable[[], str]) -> Choice:
    """Return who reads best.

    In doubt it is threads: they cost nothing to start, and everything works with them.

    Args:
        measured: What samples took.
        count: Workers that were asked for.
        batch_size: Samples of a batch.
        available: Processors that this process may use.
        unsendable: Returns why worker processes cannot have the source; empty if they can. Asked for only where they
            would be better.
    """
    inline, threads, processes = (Workers("inline", 0), Workers("threads", count), Workers("processes", count))
    if measured.failure:
        return Choice(threads, measured.failure)
    batch_s, sample = measured.sample_s * batch_size, f"a sample takes {_time(measured.sample_s)}"
    if batch_s < SMALL_BATCH_S:
        return Choice(inline, f"a batch is made in {_time(batch_s)}, sooner than it is handed to another thread")
    times = f"{sample}, and two threads are {measured.speedup:.2f} times as fast as one"
    doubt = ""
    if measured.sample_s < CHEAP_S:
        doubt = f"{sample}, too little to be worth a process"
    elif count == 1:
        doubt = "one worker was asked for, and a thread is cheaper than a process"
    elif measured.speedup >= SCALES:
        doubt = times
    elif available < 1.5:  # noqa: PLR2004 - one processor and a half
        doubt = f"{available:.3g} processors have no time for a second process"
    elif reason := unsendable():
        doubt = f"{times}: processes would be faster, but {reason}"
    return Choice(threads, doubt) if doubt else Choice(processes, f"{times}, so threads wait for each other")


def decide(
    samples: Samples, source: Any, chain: Chain | None, workers: Workers, batch_size: int, *, bulk: bool
) -> Choice:
    """Measure, and choose.

    Args:
        samples: The samples of the epoch that is about to begin.
        source: Where they come from.
        chain: The stages.
        workers: What was asked for.
        batch_size: Samples of a batch.
        bulk: Whether the source writes many samples at once.

    Blocks: for half a second at most, or as long as four samples take.
    """
    count = workers.count
    rows = batch_size if samples.total is None else min(batch_size, samples.total)
    if samples.serial:
        return Choice(Workers("threads", count), "an iterable can be read by one thread only")
    if bulk:
        return choose_bulk(_time_of_bulk(samples, rows), count)
    measured = measure(Recipe(samples, chain, readers=0).whole, rows, min(2, count))
    return choose(measured, count, batch_size, processors(), partial(why_unsendable, source, chain))


def choose_bulk(batch_s: float, count: int) -> Choice:
    """Return who reads a source that writes a batch at once in so many seconds."""
    if batch_s < SMALL_BATCH_S:
        why = f"its source writes a batch in {_time(batch_s)}, sooner than it is handed to another thread"
        return Choice(Workers("inline", 0), why)
    return Choice(Workers("threads", count), "its source writes whole batches by itself")


def _time_of_bulk(samples: Samples, rows: int) -> float:
    """Return how long a batch takes; endless where that cannot be told."""
    try:
        layout = Layout.of_sample(samples.fetch(0), rows)
        out = layout.structure.rebuild([np.empty(leaf.shape, leaf.dtype) for leaf in layout.leaves])
        times = list[float]()
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            samples.read_into(0, rows, out)
            times.append(time.perf_counter() - began)
    except Exception:  # noqa: BLE001 - whatever a source raises: the pass will tell
        return math.inf
    return min(times)


def measure(make: Callable[[int], object], most: int, threads: int = 2) -> Measured:
    """Make the first samples of an epoch, again and again; what comes of it is dropped.

    Args:
        make: Makes the sample of a position.
        most: How many positions there are.
        threads: How many may do that at the same time: two, or one alone where the source may be used by one only.

    Blocks: for half a second at most, or as long as four samples take.
    """
    if most < 1:
        return Measured(1, (), (), "there is no sample to measure")
    try:
        make(0)  # whatever is opened or imported for it is there now
        began = time.perf_counter()
        make(0)
        once_s = time.perf_counter() - began
        samples = max(1, min(_MOST_SAMPLES, int(_LEAST_ROUND_S / max(once_s, 1e-9))))
        alone_s, together_s = list[float](), list[float]()
        deadline = time.perf_counter() + _BUDGET_S
        positions = [position % most for position in range(samples)]
        for _ in range(_ROUNDS):
            alone_s.append(_round(make, positions, 1))
            together_s.append(_round(make, positions, threads))
            if time.perf_counter() > deadline:
                break
    except Exception as error:  # noqa: BLE001 - whatever a source raises: the pass will tell
        return Measured(1, (), (), f"its first samples could not be measured ({type(error).__name__})")
    return Measured(samples, tuple(alone_s), tuple(together_s))


def _round(make: Callable[[int], object], positions: Sequence[int], threads: int) -> float:
    """Return how long threads take that make these samples each.

    What they spend in line for a processor does not count: that is due to other programs, or to too few processors.
    """
    start = threading.Barrier(threads)
    failed: list[BaseException] = []
    taken_s = list[float]()

    def work() -> None:
        start.wait()
        began, cpu_s, delayed_s = time.perf_counter(), time.thread_time(), _delayed_s()
        try:
            for position in positions:
                make(position)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)
        delayed_s = _delayed_s() - delayed_s  # before the clock is read: else more than it shows could be taken off
        taken_s.append(max(time.thread_time() - cpu_s, time.perf_counter() - began - delayed_s))

    crew = [threading.Thread(target=work, name="interlock-auto", daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    if failed:
        raise failed[0]
    return max(taken_s)


def _delayed_s() -> float:
    """Return how long the calling thread has been in line for a processor; 0 where the system does not say.

    Source: `Documentation/scheduler/sched-stats.rst` of Linux.
    """
    try:
        return int(_SCHEDULE.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"
