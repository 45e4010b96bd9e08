"""Schedules: who of those that may run does, and when. Each policy is one small object; its text replays it.

| text | what it does |
| --- | --- |
| `lazy` | nothing runs until a host thread waits for it, and then only what the wait needs |
| `eager` | everything runs as soon as it may |
| `starve:NAME` | eager, but the stream NAME runs only when a wait needs it |
| `random:SEED` | at each chance a seeded coin decides whether something runs, and what |
| `pct:SEED` | streams have seeded priorities that change at a few seeded moments; the lowest runs only when it must |

Source: shuttle's schedulers (small policies, a failure prints the line that replays it); Pallas' interpret mode, whose
two DMA modes are `lazy` and `eager`; Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
finding bugs" (PCT).
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


@final
class Pct:
    """Probabilistic concurrency testing: priorities, and a few moments at which the favourite becomes the last.

    Holding work back finds as much as choosing among it does, so the stream of the lowest priority runs only when a
    wait needs it, and with one stream a coin decides whether it is held back.

    Args:
        seed: The same seed and program give the same run.
        depth: Ordering constraints of the bugs that are sought: one less is the number of changes.
        horizon: Decisions among which the changes are spread.
    """

    def __init__(self, seed: int, *, depth: int = 3, horizon: int = 512) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._priorities: dict[str, float] = {}
        self._changes = {self._random.randrange(horizon) for _ in range(depth - 1)}
        self._decisions = 0
        self._holds_back = self._random.random()

    def __str__(self) -> str:
        return f"pct:{self._seed}"

    def choose(self, runnable: tuple[str, ...], needed: frozenset[str]) -> str | None:
        """As in `Schedule`."""
        for name in runnable:
            if name not in self._priorities:
                self._priorities[name] = self._random.random()
        favourite = max(runnable, key=self._priorities.__getitem__)
        self._decisions += 1
        if self._decisions in self._changes:
            self._priorities[favourite] = min(self._priorities.values()) - 1.0
            favourite = max(runnable, key=self._priorities.__getitem__)
        held = self._priorities[favourite] < self._holds_back
        return None if held and favourite not in needed else favourite


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
    if kind == "pct" and argument.isdecimal():
        return Pct(int(argument))
    raise UsageError(f"no schedule is called {text!r}", hint="use lazy, eager, starve:STREAM, random:SEED or pct:SEED")
