"""One program under one schedule: events are folded, witnesses kept, and a report is made."""

from __future__ import annotations

import functools
import gc
import threading
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from interlock._core import _events
from interlock.check._explain import explain
from interlock.check._hazards import Fold
from interlock.check._model import Report, ScheduleRun, Unsupported
from interlock.check._sites import here, user_frame
from interlock.check._sources import activate_sources
from interlock.devices import parse_schedule
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from interlock._core._events import Event, Region
    from interlock.check._model import Hazard, Outcome

F = TypeVar("F", bound="Callable[..., Any]")

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Each operation makes a dozen of ours, which live on: at the usual 700 the collector takes a tenth of the time."""

_current: Session | None = None
_current_lock = threading.Lock()


def current_session() -> Session | None:
    """Return the session that is active in this process, or None."""
    return _current


@final
class Session:
    """Watches what happens between `with` and its end, while simulated devices follow a schedule.

    Args:
        schedule: Text as in `parse_schedule`.
        program: Shown in the report.

    Raises:
        UsageError: There is no such schedule, or another session is active.
    """

    def __init__(self, schedule: str = "lazy", *, program: str = "program") -> None:
        self.schedule = parse_schedule(schedule)
        self._program = program
        self._fold = Fold()
        self._lock = threading.Lock()
        self._witnesses: list[tuple[Region, str]] = []
        self._unsupported: dict[tuple[str, str, int], Unsupported] = {}
        self._notes: dict[str, None] = {}
        self._diverged: list[str] = []
        self._steps = 0
        self._failure: str | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        global _current  # noqa: PLW0603 - patches of a framework are for the process, so the session is too
        with _current_lock:
            if _current is not None:
                raise UsageError("a simulation is active already", hint="leave it before you enter another")
            _current = self
        try:
            self._stack.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 100)
            self._stack.callback(_events.observe(self._hear))
            self._stack.enter_context(activate_sources(self.schedule, self))
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, Exception):
            self._failure = "".join(traceback.format_exception(error))
        self._leave()

    def _leave(self) -> None:
        global _current  # noqa: PLW0603 - as above
        try:
            self._stack.close()
        finally:
            with _current_lock:
                _current = None

    def _hear(self, event: Event) -> None:
        with self._lock:
            self._fold.add(event)

    def step(self) -> None:
        """Count one operation that was queued."""
        self._steps += 1

    def note(self, text: str) -> None:
        """Say something that a reader of the report must know; once."""
        self._notes[text] = None

    def witness(self, region: Region, message: str) -> None:
        """Say that a wrong value was seen in `region`."""
        with self._lock:
            self._witnesses.append((region, message))

    def diverged(self, message: str) -> None:
        """Say that a value differs from the plain run with no missing edge to explain it: a bug of ours."""
        self._diverged.append(message)

    def unsupported(self, operation: str, why: str) -> None:
        """Say that the program does something that cannot be simulated."""
        file, line, _ = user_frame(here(2))
        self._unsupported.setdefault((operation, file, line), Unsupported(operation, file, line, why))

    def hazards(self) -> tuple[Hazard, ...]:
        """Return what was found so far, in the order in which it was found."""
        with self._lock:
            return tuple(
                explain(
                    finding,
                    witness=next((text for region, text in self._witnesses if finding.shares_bytes(region)), None),
                    replay=str(self.schedule),
                )
                for finding in self._fold.findings
            )

    def streams(self) -> tuple[str, ...]:
        """Return the bare names of the streams that were used, in the order of their first use."""
        with self._lock:
            return tuple(name.rpartition("/")[2] for name in self._fold.timelines() if "/" in name)

    def report(self) -> Report:
        """Return what was found, as the report of one schedule."""
        hazards = self.hazards()
        outcome: Outcome = "hazards" if hazards else "clean"
        notes = tuple(self._notes)
        if self._diverged and not hazards:
            outcome = "diverged"
            notes += tuple(
                f"values diverged with no missing edge, a bug of Interlock: {text}" for text in self._diverged
            )
        if self._failure is not None:
            outcome = "failed"
        run = ScheduleRun(str(self.schedule), max(self._steps, self._fold.steps), outcome)
        return Report(self._program, (run,), hazards, tuple(self._unsupported.values()), self._failure, notes)


@final
class simulate:  # noqa: N801 - used like a function
    """Run a block, or each call of a function, on a machine as unkind as the rules allow.

    Inside, `torch.cuda` is a simulated device whose schedule is `schedule`, Interlock's `device="cuda"` is the same
    device, and what is read too early or overwritten too late is found.

    Args:
        schedule: `lazy`, `eager`, `starve:STREAM`, `pct:SEED` or `random:SEED`.
        raise_on_hazard: Whether leaving the block raises `HazardError` if anything was found.

    Raises:
        UsageError: There is no such schedule, or a simulation is active already.
        HazardError: On leaving, with the report.

    Example:
        >>> with simulate("lazy", raise_on_hazard=False) as session:
        ...     pass
        >>> session.report().hazards
        ()
    """

    def __init__(self, schedule: str = "lazy", *, raise_on_hazard: bool = True) -> None:
        self._schedule = schedule
        self._raise = raise_on_hazard
        self._session: Session | None = None

    def __call__(self, function: F) -> F:
        """Return `function`, run in a simulation of its own at each call."""

        @functools.wraps(function)
        def simulated(*arguments: Any, **named: Any) -> Any:
            with simulate(self._schedule, raise_on_hazard=self._raise):
                return function(*arguments, **named)

        return simulated  # type: ignore[return-value] # same signature

    def __enter__(self) -> Session:
        self._session = Session(self._schedule)
        return self._session.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        if session is None:
            raise UsageError("a simulation was left that was not entered")
        session.__exit__(kind, error, trace)
        if error is None and self._raise and session.hazards():
            raise HazardError(session.report())


@final
class HazardError(AssertionError):
    """A simulation found hazards.

    Args:
        report: What was found.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        from interlock.check._report._review import review  # noqa: PLC0415 - only a failure needs rich
        from interlock.check._report._text import as_text  # noqa: PLC0415 - as above

        return as_text(review(self.report))
