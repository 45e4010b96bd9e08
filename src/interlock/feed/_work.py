"""One batch being made, and those who know how: readers."""

from __future__ import annotations

import itertools
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, final, runtime_checkable

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._sites import here
from interlock.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from interlock._core._handover import Carried, Part
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock.feed._layout import Layout
    from interlock.feed._stages import Step


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that its source could not give.

    Attributes:
        index: Index in the source.
        id: Its id, or the index if the source has no ids.
        reason: One line.
        attempts: How often it was asked for.
        action: What became of it: `raised`, `skipped` or `substituted`.
        substitute_index: Index of the sample that came in its place, if one did.
        substitute_id: The id of that.
        epoch: Number of the epoch.
        stage: Where it failed: `read` is the source, else the name of a stage.
    """

    index: int
    id: int | str
    reason: str
    attempts: int = 1
    action: Literal["raised", "skipped", "substituted"] = "skipped"
    substitute_index: int | None = None
    substitute_id: int | str | None = None
    epoch: int = 0
    stage: str = "read"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class Bad:
    """A row of a batch whose sample could not be had.

    Attributes:
        row: The row.
        error: What its source raised last.
        attempts: How often it was asked for.
        substitute: Index of the sample that is in the row now; None if there is none.
    """

    row: int
    error: Exception
    attempts: int
    substitute: int | None = None


@final
@dataclass(slots=True)
class Spent:
    """Time in one stage: of its workers, and of processors."""

    busy_s: float = 0.0
    cpu_s: float = 0.0


@final
@dataclass(eq=False, slots=True)
class Work:
    """A batch from plan to hand-over. Made by the owner, filled by workers, read by the owner when it comes back.

    Attributes:
        number: Position of the batch in its epoch.
        start: Position of its first sample in the epoch.
        rows: Planned rows; after `Reader.finish` the rows that it has.
        units: Pieces that workers take; each is taken once.
        batches: Batches that its rows are for the consumer, see `_together`.
        whole: Whether its arrays are the consumer's as they are; else NumPy's, for who takes its batches apart.
        layout: How the slot is laid out; a reader that learns it late sets it while filling.
        trim: First axis of each leaf as the consumer sees it; None for all that the layout has.
        stages: What it cost in each of the user's stages, in their order; empty if nobody counted.
        made_s: When it was done, on the clock of `time.perf_counter`; 0 if that is not known.
        parts: Bytes of the batch that are not in the slot, where a loader has them on a device or pinned.
        extras: Values that travel beside the slot, by leaf position; empty where every leaf is an array.
        errors: The samples that failed, by row once the batch is finished.
        retried: Attempts at samples after the first ones.
        void: Whether there is nothing to hand over: the epoch ended before, or every sample failed.
        kept: Positions of the rows that are left where some failed, else None.
        ready: When the bytes are where the consumer reads them.
        carried: What a framework with arrays on a device needs to hand the batch over; else None.
        cause: Why the whole batch failed, or None.
        subject: Whose batch it is, for traces.
        slot: The memory of its slot, once somebody has asked for views of it.
        lease: Its slot, once the owner has claimed one.
        take: Returns the number of the next piece, each once, from any thread.
    """

    number: int
    start: int
    rows: int
    units: int
    batches: int = 1
    whole: bool = True
    layout: Layout | None = None
    trim: tuple[int, ...] | None = None
    parts: Sequence[Part] = ()
    extras: dict[int, Any] = field(default_factory=dict)
    errors: list[Bad] = field(default_factory=list)
    retried: int = 0
    void: bool = False
    kept: npt.NDArray[np.intp] | None = None
    fetch_s: float = 0.0
    copy_s: float = 0.0
    cpu_s: float = 0.0
    made_s: float = 0.0
    stages: list[Spent] = field(default_factory=list)
    nbytes: int = 0
    ready: Fence = Fence.EMPTY
    carried: Carried | None = None
    cause: BaseException | None = None
    subject: str = ""
    slot: SlotMemory | None = None
    lease: Lease = field(init=False)
    take: Callable[[], int] = field(init=False)
    _left: int = field(init=False)
    _lock: threading.Lock = field(init=False)
    _views: list[npt.NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        self.take = itertools.count().__next__
        self._left = self.units
        self._lock = threading.Lock()

    def views(self, memory: Callable[[int], SlotMemory]) -> list[npt.NDArray[Any]]:
        """Return a writable array per leaf over the slot. Only once the layout is known."""
        if self._views is None:
            if self.layout is None:
                raise InternalError(f"batch {self.number} is written before its layout is known")
            self.slot = memory(self.layout.size_bytes)
            staging = self.slot.staging
            if observed():
                emit(Access(host_timeline(), staging.region, "write", "feed.fill", site=here()))
            self._views = self.layout.views(staging)
        return self._views

    def settle(self, made: int, failed: BaseException | None, cpu_s: float = 0.0) -> bool:
        """Count pieces as made, in so much processor time; return whether they were the last. `failed` fails it all."""
        with self._lock:
            self._left -= made
            self.cpu_s += cpu_s
            self.cause = self.cause or failed
            return self._left == 0

    @property
    def rows_seen(self) -> int:
        """Rows that the batch has, and those that are left out of it."""
        return self.rows + (sum(one.substitute is None for one in self.errors) if self.errors else 0)

    def count(self, fetch_s: float, copy_s: float, errors: list[Bad]) -> None:
        """Add what one piece took, and which samples in it failed."""
        with self._lock:
            self.fetch_s += fetch_s
            self.copy_s += copy_s
            self.errors += errors

    def count_cpu(self, cpu_s: float) -> None:
        """Add processor time of reading a piece."""
        with self._lock:
            self.cpu_s += cpu_s

    def count_stage(self, index: int, busy_s: float, cpu_s: float = 0.0) -> None:
        """Add what one piece took in the stage with that index; `cpu_s` is the processor time in it."""
        with self._lock:
            while len(self.stages) <= index:
                self.stages.append(Spent())
            self.stages[index].busy_s += busy_s
            self.stages[index].cpu_s += cpu_s

    def count_retries(self, times: int) -> None:
        """Add attempts at samples after the first ones."""
        with self._lock:
            self.retried += times


class Reader(Protocol):
    """Knows what the batches of one epoch are and how to make them."""

    @property
    def slot_bytes(self) -> int:
        """Bytes that a slot needs, as far as is known now; asked by the owner before each claim."""
        ...

    def plan(self, number: int) -> Work | None:
        """Return what batch `number` will be, or None if the epoch ends before it. Called by the owner, in order."""
        ...

    def run(self, work: Work, unit: int, memory: Callable[[int], SlotMemory]) -> None:
        """Make one piece of a batch; called on workers, several at once.

        Args:
            work: The batch.
            unit: Which piece.
            memory: Returns the slot's memory, of at least so many bytes.

        Raises:
            Exception: The whole batch failed. What concerns one sample goes to `work.errors` instead.
        """
        ...

    def finish(self, work: Work, memory: Callable[[int], SlotMemory]) -> None:
        """Called once, on a worker, when all pieces are made: sets the rows that the batch has."""
        ...

    def stop(self) -> None:
        """No more batches are wanted."""
        ...


@final
@dataclass(eq=False, slots=True)
class Piece:
    """Some rows of a batch on their way through the stages. One thread has it at a time.

    Attributes:
        work: The batch.
        rows: Its rows, in order.
        samples: What the source, or the last stage that they went through, made of them; fewer than rows if the epoch
            ended, or the pass was stopped.
        busy_s: Time in the source and in stages.
    """

    work: Work
    rows: range
    samples: list[Any]
    busy_s: float = 0.0


@runtime_checkable
class StagedReader(Reader, Protocol):
    """A reader that can also make a batch in steps, each on threads of its own."""

    @property
    def steps(self) -> Sequence[Step]:
        """The stages; none if a batch is made by `run` alone."""
        ...

    def read(self, work: Work, unit: int) -> Piece:
        """Ask the source for the samples of one piece. Called as `run` is."""
        ...

    def advance(self, piece: Piece, index: int, memory: Callable[[int], SlotMemory]) -> None:
        """Let a piece go through the stage with that index. Called on workers of that stage."""
        ...

    def land(self, piece: Piece, memory: Callable[[int], SlotMemory]) -> None:
        """Write the samples of a piece into the slot, and see to those that failed.

        Called on workers of the last stage.

        Raises:
            Exception: As in `run`.
        """
        ...
