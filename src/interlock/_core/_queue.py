"""A stream as a queue of operations: what host and simulated devices are made of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock._core._fence import Fence

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import Region
    from interlock._core._fence import Timeline


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a queue.

    Attributes:
        name: Shown in reports and messages.
        run: Does the work; None for an entry that only waits.
        after: Must be reached before.
        touches: The bytes that `run` reads or writes.
    """

    name: str
    run: Callable[[], None] | None
    after: Fence = Fence.EMPTY
    touches: tuple[Region, ...] = ()


@final
class OperationQueue:
    """Operations in order; a timeline whose tick `n` is reached when the first `n` operations are done.

    Not locked: the device that owns it is.

    Args:
        name: Name of the timeline.
        progress: Called by `reached` when the tick is not reached yet, with this queue, the tick and whether a host
            thread waits; may run operations.
    """

    __slots__ = ("_cause", "_done", "_failed_at", "_name", "_progress", "_queue", "_queued")

    def __init__(self, name: str, progress: Callable[[OperationQueue, int, bool], None]) -> None:
        self._name = name
        self._progress = progress
        self._queue: deque[Operation] = deque()
        self._queued = 0
        self._done = 0
        self._cause: BaseException | None = None

    def __repr__(self) -> str:
        return f"OperationQueue({self._name!r}, done={self._done}, queued={self._queued})"

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    @property
    def queued(self) -> int:
        """Tick of the last operation put."""
        return self._queued

    @property
    def done(self) -> int:
        """Tick of the last operation that ran."""
        return self._done

    @property
    def head(self) -> Operation | None:
        """The next operation, or None when the queue is empty or failed."""
        return self._queue[0] if self._queue else None

    def pending(self) -> tuple[Operation, ...]:
        """Return what has not run yet, oldest first."""
        return tuple(self._queue)

    def put(self, operation: Operation) -> int:
        """Append an operation and return its tick. On a failed queue it will never run."""
        self._queued += 1
        if self._cause is None:
            self._queue.append(operation)
        return self._queued

    def can_run(self) -> bool:
        """Tell whether there is a next operation and nothing that it must wait for; asks no queue to make progress."""
        head = self.head
        return head is not None and all(is_past(timeline, tick) for timeline, tick in head.after.points)

    def is_past(self, tick: int) -> bool:
        """Tell whether `tick` is done or failed, without making progress."""
        return self._done >= tick or self._cause is not None

    def run_one(self) -> None:
        """Run the next operation. If it raises, or what it waited for failed, the queue fails with that cause."""
        operation = self._queue.popleft()
        cause = operation.after.failure()
        if cause is None and operation.run is not None:
            try:
                operation.run()
            except BaseException as error:  # kept as the state of the timeline, shown to every waiter
                self._fail(error)
                if not isinstance(error, Exception):
                    raise  # an interrupt is not the operation's own failure
                return
        if cause is None:
            self._done += 1
        else:
            self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        self._cause = cause
        self._queue.clear()

    def reached(self, tick: int, *, waiting: bool = False) -> bool:
        """As in `Timeline`."""
        if not self.is_past(tick):
            self._progress(self, tick, waiting)
        return self.is_past(tick)

    def failure(self, tick: int) -> BaseException | None:
        """As in `Timeline`."""
        return self._cause if self._done < tick else None

    def notify(self, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - part of the protocol
        """As in `Timeline`; always False: progress is made by those who ask."""
        return False


def is_past(timeline: Timeline, tick: int) -> bool:
    """Tell whether `tick` is done or failed; unlike `Timeline.reached`, asks no queue to make progress."""
    return timeline.is_past(tick) if isinstance(timeline, OperationQueue) else timeline.reached(tick)
