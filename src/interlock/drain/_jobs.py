"""What goes to the writer thread, and what comes back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

from interlock._core._fence import Fence, HostTimeline
from interlock._waiting import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import Region
    from interlock._core._rows import Rows
    from interlock._core._sums import Sums
    from interlock.drain._ids import IdArray
    from interlock.drain._staging import Claim


@final
class Landing:
    """When the bytes of one job are on the host; lets go of everything once they are.

    Attributes:
        fence: What to wait for; empty when it was waited for.
    """

    __slots__ = ("fence",)

    def __init__(self, fence: Fence) -> None:
        self.fence = fence


@final
@dataclass(slots=True)
class RowsJob:
    """Rows to write.

    Attributes:
        tick: On the timelines `written` and `committed`.
        ids: One per row; ours.
        landing: When `readers` may be called.
        readers: Column name to a function that returns the rows on the host.
        claims: Slots that hold them; the owner takes them back when the job is written.
        held_bytes: Bytes of the budget that the job holds besides its slots.
        regions: The bytes of the slots, for events.
        number: Which put of its drain, from 0.
        sums: Column name to the checksums that the rows had at `put`; empty unless the drain verifies.
    """

    tick: int
    ids: IdArray
    landing: Landing
    readers: dict[str, Callable[[], Rows]]
    claims: list[Claim]
    held_bytes: int
    regions: tuple[Region, ...]
    number: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class FailJob:
    """Rows that could not be produced."""

    tick: int
    ids: IdArray
    reason: str


@final
@dataclass(frozen=True, slots=True)
class FlushJob:
    """Commit everything before."""

    tick: int


@final
@dataclass(frozen=True, slots=True)
class StopJob:
    """End the thread; what is not committed is dropped."""


_numbers = itertools.count()

Job: TypeAlias = RowsJob | FailJob | FlushJob | StopJob


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A job's slots are free again."""

    job: RowsJob


@final
@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows were recorded as failed in place of being written; their ids may come again."""

    ids: IdArray


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """The writer thread is at its end."""


Message: TypeAlias = Written | Rejected | Ended


@final
@dataclass(slots=True)
class Link:
    """What the owner and the writer thread share.

    Attributes:
        subject: Which drain, for a trace.
        jobs: To the writer.
        owner: To the owner.
        written: Timeline of jobs whose rows are with the sink.
        committed: Timeline of jobs whose rows are committed.
        failure: Why the writer gave up.
        stop: Set to make the writer give up at the next job.
        doing: What the writer does now, for messages.
        accepted_rows: Rows handed to the writer.
        rejected_rows: Rows that the writer recorded as failed.
        written_rows: Rows that are with the sink.
    """

    subject: str = field(default_factory=lambda: f"drain {next(_numbers)}")
    jobs: Inbox[Job] = field(default_factory=Inbox)
    owner: Inbox[Message] = field(default_factory=Inbox)
    written: HostTimeline = field(default_factory=lambda: HostTimeline("drain/written"))
    committed: HostTimeline = field(default_factory=lambda: HostTimeline("drain/committed"))
    failure: BaseException | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    doing: str = "starting"
    accepted_rows: int = 0
    rejected_rows: int = 0
    written_rows: int = 0

    def next_tick(self) -> int:
        """Return the tick of a new job; both timelines count the same."""
        self.written.next_tick()
        return self.committed.next_tick()

    def raise_failure(self) -> None:
        """Raise why the writer gave up, if it did."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
