"""Calls that get landed values: made one after another, on a thread of their own, while the loop goes on."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from interlock._waiting import Inbox
from interlock.errors import BoundError, InterlockError, SinkError
from interlock.integrations._slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from interlock.integrations._slots import Landing
    from interlock.integrations._torch_trees import Tree

    Call: TypeAlias = Callable[[Any], object]

_MOST_CALLS = 64
"""Batches between the loop and the thread: a bound for those so small that their bytes bound nothing."""

_STOP_BOUND_S = 10.0


@final
@dataclass(slots=True)
class _Job:
    """One call: of what, with what, whether the values are to outlive it, and which batch that is."""

    call: Call
    tree: Tree
    landing: Landing
    own: bool
    label: str


@final
@dataclass(frozen=True, slots=True)
class _Done:
    """A call is over; `kept` says of each slot whether somebody still holds views of it."""

    job: _Job
    kept: list[bool]


@final
@dataclass(slots=True)
class _Link:
    """What the loop and the thread share.

    Attributes:
        jobs: To the thread; None ends it.
        done: To the loop.
        failure: Why calls are not made any more.
        doing: What the thread does, for messages.
        keeps: Whether a call was seen to keep its values: from then on it gets copies.
    """

    jobs: Inbox[_Job | _Stop] = field(default_factory=Inbox)
    done: Inbox[_Done] = field(default_factory=Inbox)
    failure: BaseException | None = None
    doing: str = "waiting"
    keeps: bool = False


@final
class _Stop:
    """Ends the thread."""


@final
class Calls:
    """Makes calls with landed values.

    A call may keep what it is given. Slots are lent to it, and one whose values outlive the call is given away with
    them; that happens once, and later calls get copies in memory of their own. So the slots stay within the budget.

    Args:
        name: Of what, for messages.
        budget_bytes: Most bytes of slots; values that are larger travel alone.
        timeout_s: Bound on every wait.
        around: Makes the context in which the thread works.
    """

    def __init__(
        self,
        name: str,
        *,
        budget_bytes: int,
        timeout_s: float,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._budget_bytes = budget_bytes
        self._slots = Slots(budget_bytes, timeout_s)
        self._link = _Link()
        self._open = 0
        self._thread = threading.Thread(
            target=_run, args=(self._link, timeout_s, around), name=f"interlock {name}", daemon=True
        )
        self._thread.start()
        self._stopped = weakref.finalize(self, self._link.jobs.post, _Stop())
        self._stopped.atexit = False  # a daemon ends with the process

    @property
    def open(self) -> int:
        """Batches that were handed over and whose call is not over, as far as the loop has heard."""
        return self._open

    def put(self, call: Call, tree: Tree, label: str, *, own: bool = False) -> None:
        """Have `call` made with the values that `tree` has now.

        Args:
            call: Made on the thread, after those before it.
            tree: What it gets.
            label: Which batch, for messages.
            own: Whether the values are to lie in memory of their own.

        Ordering:
            As in `Drain.put`: afterwards the caller may change what it gave, in its own order.

        Copies: device arrays once on the device and once to the host, host arrays once; with `own` once more, on the
            thread.

        Blocks: while there is no room in the budget.

        Raises:
            InterlockError: A call before failed; it is named.
            DeviceError: A device has no memory for the snapshot or for a slot.
            BoundError: There was no room for longer than `timeout_s`.
        """
        self.raise_failure()
        size_bytes = self._slots.size_of(tree.parts)
        self._hear_until(
            lambda: self._open < _MOST_CALLS and self._slots.has_room(size_bytes),
            f"{label} found no room in {self._budget_bytes:,} bytes",
        )
        self.raise_failure()
        landing = self._slots.take(tree.parts)
        for part in tree.parts:
            part.forget()
        self._open += 1
        self._link.jobs.post(_Job(call, tree, landing, own, label))

    def finish(self) -> None:
        """Wait until every call is over.

        Raises:
            InterlockError: One failed; it is named.
            BoundError: One took longer than `timeout_s`.
        """
        self._hear_until(lambda: not self._open, f"{self._name} is not done")
        self.raise_failure()

    def close(self) -> None:
        """As `finish`, and end the thread. Calling it again only raises what there is to raise."""
        try:
            self.finish()
        finally:
            self._stopped()
            if not self._open:
                self._thread.join(_STOP_BOUND_S)

    def raise_failure(self) -> None:
        """Raise why calls are not made any more, if they are not."""
        self._collect()
        if self._link.failure is not None:
            raise self._link.failure.with_traceback(None)

    def _collect(self) -> None:
        while (done := self._link.done.take_nowait()) is not None:
            self._hear(done)

    def _hear(self, done: _Done) -> None:
        self._slots.give_back(done.job.landing, done.kept)
        self._open -= 1

    def _hear_until(self, satisfied: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        self._collect()
        while not satisfied():
            done = self._link.done.wait_take(deadline_s - time.monotonic())
            if done is None:
                raise BoundError(
                    f"{what} after {self._timeout_s:g} s",
                    why=f"{self._name} is {self._link.doing}",
                    hint="raise timeout_s, or look at what it writes to",
                )
            self._hear(done)
            deadline_s = time.monotonic() + self._timeout_s


def _run(link: _Link, timeout_s: float, around: Callable[[], AbstractContextManager[object]]) -> None:
    with ExitStack() as stack:
        try:
            stack.enter_context(around())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            link.failure = _explain(error, "the first batch")
        while True:
            job = link.jobs.wait_take(timeout_s)
            if isinstance(job, _Stop):
                return
            if job is not None:
                kept = _make(link, job, timeout_s)
                link.doing = "waiting"
                link.done.post(_Done(job, kept))
                del job


def _make(link: _Link, job: _Job, timeout_s: float) -> list[bool]:
    """Make one call; return which of its slots are still held."""
    watched: list[weakref.ref[Any]] = []
    try:
        if link.failure is None:
            link.doing = f"waiting for {job.label} to land"
            views, loans = job.landing.lend(timeout_s, f"the copy of {job.label}")
            watched = [weakref.ref(loan) for loan in loans]
            value = job.tree.fill(views, own=job.own or link.keeps)
            del views, loans
            link.doing = f"writing {job.label}"
            job.call(value)
            del value
    except BaseException as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
        link.failure = _explain(error, job.label)
    job.call = _nothing  # what it holds may be what keeps the values
    kept = [one() is not None for one in watched] or [False] * len(job.landing.claims)
    link.keeps = link.keeps or any(kept)
    return kept


def _nothing(_: Any) -> None:
    """Stand where a call was."""


def _explain(error: BaseException, label: str) -> BaseException:
    if isinstance(error, InterlockError):
        error.add_note(f"this was {label}")
        return error
    failure = SinkError(
        f"writing {label} failed",
        why=f"{type(error).__name__}: {error}",
        hint="batches before it were written, batches after it were not",
    )
    failure.__cause__ = error
    return failure
