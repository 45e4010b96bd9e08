"""What the one who puts and the lanes share."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from interlock._core._fence import HostTimeline
from interlock._waiting import Inbox
from interlock.drain._backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.drain._jobs import Message

_numbers = itertools.count()


@final
@dataclass(slots=True)
class Link:
    """What the owner and the lanes share.

    Attributes:
        subject: Which drain, for a trace.
        owner: To the owner.
        written: Timeline of jobs whose rows are with the sink.
        committed: Timeline of jobs whose rows are committed.
        jobs: To the lanes.
        failure: Why a lane gave up, and so all.
        stop: Set to make the lanes give up at the next job.
        accepted_rows: Rows handed to the lanes.
        waited: Told while rows that have landed wait for a lane, and `put` for them or they for a whole shard: the
            seconds in all for which that was so.
    """

    subject: str = field(default_factory=lambda: f"drain {next(_numbers)}")
    owner: Inbox[Message] = field(default_factory=Inbox)
    written: HostTimeline = field(default_factory=lambda: HostTimeline("drain/written"))
    committed: HostTimeline = field(default_factory=lambda: HostTimeline("drain/committed"))
    jobs: Backlog = field(init=False)
    failure: BaseException | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    accepted_rows: int = 0
    waited: Callable[[float], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        """Have the backlog drive the timelines."""
        self.jobs = Backlog(self.written, self.committed)

    def next_tick(self) -> int:
        """Return the tick of a new job; both timelines count the same."""
        self.written.next_tick()
        return self.committed.next_tick()

    def raise_failure(self) -> None:
        """Raise why a lane gave up, if one did."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    @property
    def doing(self) -> str:
        """What the lanes do now, as a clause."""
        told = [door.doing for door in self.jobs.doors]
        if len(told) == 1:
            return f"the writer is {told[0]}"
        return ", ".join(f"writer {number} is {one}" for number, one in enumerate(told, 1))
