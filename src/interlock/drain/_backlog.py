"""Jobs between the one who puts and those who write: who takes the next, and up to where all of them are done.

Each writer, a *lane*, takes for itself: whoever is free takes the oldest job. So no lane has work waiting while
another has none, and nobody deals jobs out. The one who puts only appends, which an interrupt cannot cut in two.

A lane but the first begins a shard only if it would be begun anyway: rows for a whole shard wait, or `put` waits for
room. So a run that one writer can follow leaves the shards that one writer makes. What has a shard open takes whatever
comes while the lanes before it are busy.

Jobs end in any order, but a tick of `written` or `committed` stands for all before it. So each is driven by a
*watermark*: the last job before which all that lanes have taken are done. Jobs are taken in the order of their ticks,
so those that nobody has taken lie behind it too.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from interlock._waiting import Inbox
from interlock.drain._jobs import FlushJob, Look, RowsJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from interlock._core._fence import HostTimeline
    from interlock.drain._jobs import Job, Order


@final
class Watermark:
    """Drives a timeline over jobs that end in any order: what it has reached has ended, and so has all before.

    Args:
        timeline: What to drive.
    """

    def __init__(self, timeline: HostTimeline) -> None:
        self._timeline = timeline
        self._begun: deque[int] = deque()
        self._ended: set[int] = set()
        self._lock = threading.Lock()

    def begin(self, tick: int) -> None:
        """Say that a job is under way; ticks come in their order, and some may never come."""
        with self._lock:
            self._begun.append(tick)

    def end(self, ticks: Iterable[int]) -> None:
        """Say that jobs are done."""
        reached = 0
        with self._lock:
            self._ended.update(ticks)
            while self._begun and self._begun[0] in self._ended:
                reached = self._begun.popleft()
                self._ended.remove(reached)
        if reached:
            self._timeline.reach(reached)


@final
@dataclass(slots=True)
class Door:
    """What others see of a lane.

    Attributes:
        number: 0 for the first.
        orders: What it is told besides the jobs that it takes: to look for one, to commit, to stop.
        idle: Whether it found no job and waits for orders.
        has_open: Whether it has rows in a shard that is not full.
        doing: What it does, for messages.
    """

    number: int
    orders: Inbox[Order] = field(default_factory=Inbox)
    idle: bool = False
    has_open: bool = False
    doing: str = "starting"


@final
class Backlog:
    """The jobs that no lane has taken.

    Args:
        written: Timeline of jobs whose rows are with the sink.
        committed: Timeline of jobs whose rows are committed.

    Attributes:
        shard_bytes: Rows that fill a shard.
        limit: How many lanes may begin shards.
        largest_bytes: Of all jobs so far, the rows of the largest.
        doors: Of the lanes, by number.
        written: What drives the timeline of that name.
        committed: What drives the timeline of that name.
    """

    def __init__(self, written: HostTimeline, committed: HostTimeline) -> None:
        self.shard_bytes = 1
        self.limit = 1
        self.largest_bytes = 0
        self.doors: tuple[Door, ...] = ()
        self.written = Watermark(written)
        self.committed = Watermark(committed)
        self._jobs: deque[Job] = deque()
        self._posted_bytes = 0
        self._taken_bytes = 0
        self._put_waits = False
        self._lock = threading.Lock()

    def add_door(self) -> Door:
        """Make the door of another lane. Only by whoever holds the drain's lock."""
        door = Door(len(self.doors))
        self.doors = (*self.doors, door)
        return door

    def post(self, job: Job) -> None:
        """Append a job. Only by whoever holds the drain's lock; never blocks."""
        self._jobs.append(job)  # first: whatever an interrupt leaves out, the next call makes up for
        self._posted_bytes += job.size_bytes
        self.largest_bytes = max(self.largest_bytes, job.size_bytes)
        with self._lock:
            self._wake()

    def take(self, door: Door) -> Job | None:
        """Take the next job for a lane, or return None: then the lane is idle, and gets an order when there is one.

        A flush is handed to all lanes.
        """
        with self._lock:
            door.idle = True
            if not self._may_take(door):
                return None
            job = self._jobs.popleft()
            door.idle = False
            self._taken_bytes += job.size_bytes
            self.written.begin(job.tick)
            self.committed.begin(job.tick)
            if isinstance(job, FlushJob):  # every lane has taken what was before
                for other in self.doors:
                    if other is not door:
                        other.orders.post(job)
            self._wake()
        if isinstance(job, FlushJob):
            self.written.end([job.tick])
            self.committed.end([job.tick])
        return job

    @contextmanager
    def put_waits(self) -> Iterator[None]:
        """Inside of it `put` waits for room: another lane may begin a shard for whatever waits."""
        self._put_waits = True
        try:
            with self._lock:
                self._wake()
            yield
        finally:
            self._put_waits = False

    def holds_up_put(self) -> bool:
        """Tell whether `put` waits for room while rows that have landed wait for a lane: another would write them."""
        return self._put_waits and self._has_landed_rows()

    def has_backlog(self) -> bool:
        """Tell whether rows for a whole shard wait for a lane."""
        return self._posted_bytes - self._taken_bytes >= self.shard_bytes

    def is_behind(self) -> bool:
        """Tell whether rows for a whole shard wait for a lane, and the oldest have landed: another would write them."""
        return self.has_backlog() and self._has_landed_rows()

    def _has_landed_rows(self) -> bool:
        with self._lock:
            job = self._jobs[0] if self._jobs else None
        # Not `Fence.poll`, which orders the caller behind the copy: it only looks, and must not hide a missing wait.
        return isinstance(job, RowsJob) and all(one.reached(tick) for one, tick in job.landing.fence.points)

    def _may_take(self, door: Door) -> bool:
        if not self._jobs:
            return False
        if not door.number or not isinstance(self._jobs[0], RowsJob):
            return True
        if door.number >= self.limit:
            return False
        return door.has_open or self._put_waits or self.has_backlog()

    def _wake(self) -> None:
        """Have the first lane that is idle and may take a job look for it."""
        for door in self.doors:
            if door.idle and self._may_take(door):
                door.orders.post(Look())
                return
