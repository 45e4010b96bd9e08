"""Where the time goes: stopwatches of the producer's loop and of the threads that write.

A stopwatch runs from the begin of a life to its end, and each moment of that is in exactly one phase: so the phases add
up to the whole, and what nobody thought of shows as time in the phase around it.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

P = TypeVar("P", bound=str)

LoopPhase: TypeAlias = Literal["start", "loop", "put", "slot", "copy", "flush"]
"""What the thread that puts does: what comes before its first put, its own work, and what the drain makes it do."""

WriterPhase: TypeAlias = Literal["idle", "land", "check", "encode", "write", "hash", "fsync", "commit"]
"""What a thread that writes does."""

LOOP_PHASES: tuple[LoopPhase, ...] = ("start", "loop", "put", "slot", "copy", "flush")
WRITER_PHASES: tuple[WriterPhase, ...] = ("idle", "land", "check", "encode", "write", "hash", "fsync", "commit")


@final
class Stopwatch(Generic[P]):
    """Seconds by phase. Belongs to one thread at a time; anybody may read, at any time.

    Args:
        phases: Their names.
        clock: Seconds, only ever rising.
    """

    __slots__ = ("_clock", "_phases", "_state")

    def __init__(self, phases: Sequence[P], clock: Callable[[], float] = time.perf_counter) -> None:
        self._phases = tuple(phases)
        self._clock = clock
        # The phase (None outside of the life), since when, and the seconds before: replaced whole, so that whoever
        # reads on another thread never sees time twice, or not at all.
        self._state: tuple[P | None, float, tuple[float, ...]] = (None, 0.0, (0.0,) * len(self._phases))

    def begin(self, phase: P) -> None:
        """Begin the life, in `phase`."""
        self._state = (phase, self._clock(), self._state[2])

    def end(self) -> None:
        """End the life: from now on nothing counts."""
        self._state = (None, 0.0, self._sums(self._state, self._clock()))

    def on(self, phase: P) -> _Within[P]:
        """Return a context manager: time inside counts as `phase`, and not as the phase around it."""
        return _Within(self, phase)

    def switch(self, phase: P | None) -> P | None:
        """Go to another phase, and return the one before. Outside of the life nothing happens."""
        state = self._state
        if state[0] is not None and phase is not None:
            now_s = self._clock()
            self._state = (phase, now_s, self._sums(state, now_s))
        return state[0]

    def move(self, phase: P, seconds: float) -> None:
        """Count the last seconds as `phase`, as far as they were in the phase of now: for what others timed."""
        now, since_s, sums = self._state
        if now is not None:
            moved_s = min(seconds, self._clock() - since_s)
            self._state = (now, since_s + moved_s, self._plus(sums, phase, moved_s))

    def seconds(self) -> dict[P, float]:
        """Return the seconds in each phase up to now."""
        state = self._state  # before the clock is read: else it could be of a later time
        return dict(zip(self._phases, self._sums(state, self._clock()), strict=True))

    def _sums(self, state: tuple[P | None, float, tuple[float, ...]], now_s: float) -> tuple[float, ...]:
        phase, since_s, sums = state
        return sums if phase is None else self._plus(sums, phase, now_s - since_s)

    def _plus(self, sums: tuple[float, ...], phase: P, seconds: float) -> tuple[float, ...]:
        index = self._phases.index(phase)
        return (*sums[:index], sums[index] + seconds, *sums[index + 1 :])


@final
class _Within(Generic[P]):
    """Inside of it a stopwatch is in a phase."""

    __slots__ = ("_phase", "_watch")

    def __init__(self, watch: Stopwatch[P], phase: P) -> None:
        self._watch = watch
        self._phase: P | None = phase

    def __enter__(self) -> None:
        self._phase = self._watch.switch(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.switch(self._phase)


class _Here(threading.local):
    watch: Stopwatch[WriterPhase] | None = None


_here = _Here()


def count_here(watch: Stopwatch[WriterPhase]) -> None:
    """Have what the calling thread writes from now on counted by `watch`."""
    _here.watch = watch


def writing() -> AbstractContextManager[None]:
    """Return a context manager: time inside counts as writing, if the calling thread counts its time."""
    return nullcontext() if _here.watch is None else _here.watch.on("write")


def hashing() -> AbstractContextManager[None]:
    """As `writing`, of hashing what is written."""
    return nullcontext() if _here.watch is None else _here.watch.on("hash")


def count_as_writing(seconds: float) -> None:
    """Count the last seconds of the calling thread as writing: others wrote for it, and it waited for them."""
    if _here.watch is not None:
        _here.watch.move("write", seconds)
