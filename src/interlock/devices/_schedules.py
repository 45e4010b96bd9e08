"""Schedules: who of those that may run does, and when. Each policy is one small object; its text replays it.

| text | what it does |
| --- | --- |
| `lazy` | nothing runs until a host thread waits for it, and then only what the wait needs |
| `eager` | everything runs as soon as it may |
| `starve:NAME` | eager, but the stream NAME runs only when a wait needs it |
| `random:SEED` | at each chance a seeded coin decides whether something runs, and what |

Source: shuttle's schedulers (small policies, a failure prints the line that replays it); Pallas' interpret mode, whose
two DMA modes are `lazy` and `eager`.
"""

from __future__ import annotations

import random
from typing import Protocol, final

from interlock.errors import UsageError


class Schedule(Protocol):
    """Decides which stream runs its next operation."""

    def __str__(self) -> str:
        """Return the text that `parse_schedule` turns into the same schedule, from its start."""
        ...

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:
        """Pick a stream to run one operation, or None to run nothing now.

        Args:
            runnable: Streams whose next operation may run, in the order in which they were made; not empty.
            needed: Those among them that a waiting host thread cannot do without. While it is not empty, None is taken
                as the first of `needed` by name: no schedule may hang a program that the rules let go on.
        """
        ...


@final
class Lazy:
    """Nothing runs before somebody waits for it."""

    def __str__(self) -> str:
        return "lazy"

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:
        """As in `Schedule`."""
        return next((name for name in runnable if name in needed), None)


@final
class Eager:
    """Everything runs as soon as it may."""

    def __str__(self) -> str:
        return "eager"

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:  # noqa: ARG002
        """As in `Schedule`."""
        return runnable[0]


@final
class Starve:
    """One stream runs only when it must.

    Args:
        stream: Its name.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def __str__(self) -> str:
        return f"starve:{self._stream}"

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:  # noqa: ARG002
        """As in `Schedule`."""
        return next((name for name in runnable if name != self._stream), None)


@final
class Random:
    """A seeded coin.

    Args:
        seed: The same seed and program give the same run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - not for secrets

    def __str__(self) -> str:
        return f"random:{self._seed}"

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:
        """As in `Schedule`."""
        if not needed and self._random.random() < 0.5:  # noqa: PLR2004 - a coin
            return None
        return self._random.choice(runnable)


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that `text` names, at its start.

    Raises:
        UsageError: There is no such schedule.
    """
    kind, _, argument = text.partition(":")
    if kind == "lazy" and not argument:
        return Lazy()
    if kind == "eager" and not argument:
        return Eager()
    if kind == "starve" and argument:
        return Starve(argument)
    if kind == "random" and argument.isdecimal():
        return Random(int(argument))
    raise UsageError(f"no schedule is called {text!r}", hint="use lazy, eager, starve:STREAM or random:SEED")
