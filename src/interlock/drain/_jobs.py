"""What goes to the threads that write, the *lanes*, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import Region
    from interlock._core._fence import Fence
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
        size_bytes: Bytes of the rows and their ids.
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
    size_bytes: int = 0


@final
@dataclass(frozen=True, slots=True)
class FailJob:
    """Rows that could not be produced."""

    tick: int
    ids: IdArray
    reason: str
    size_bytes: ClassVar[int] = 0


@final
@dataclass(frozen=True, slots=True)
class FlushJob:
    """Commit everything before."""

    tick: int
    size_bytes: ClassVar[int] = 0


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread; what is not committed is dropped."""


@final
@dataclass(frozen=True, slots=True)
class Look:
    """See whether there is a job to take."""


Job: TypeAlias = RowsJob | FailJob | FlushJob
"""What lanes take, each once."""

Order: TypeAlias = FlushJob | Stop | Look
"""What a lane is told."""


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
    """A lane is at its end."""


Message: TypeAlias = Written | Rejected | Ended
