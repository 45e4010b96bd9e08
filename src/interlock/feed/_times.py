"""What the stages of one pass did, added up from the batches that were handed over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from interlock.feed._stages import COPY, READ
from interlock.feed._statistics import StageTimes
from interlock.feed._work import Spent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.feed._stages import Step
    from interlock.feed._statistics import StageKind
    from interlock.feed._work import Work


@final
@dataclass(slots=True)
class _Sum:
    """Time in one stage, and of that in those batches whose processor time is known."""

    busy_s: float = 0.0
    known: Spent = field(default_factory=Spent)

    def add(self, busy_s: float, cpu_s: float) -> None:
        self.busy_s += busy_s
        if cpu_s:
            self.known.busy_s += busy_s
            self.known.cpu_s += cpu_s

    @property
    def cpu_s(self) -> float | None:
        return self.known.cpu_s * self.busy_s / self.known.busy_s if self.known.busy_s else None


@final
class Times:
    """The sums of one pass.

    Args:
        kind: Who makes the batches.
        workers: How many read.
        steps: The stages; with threads each has workers of its own, else who reads does it all.
    """

    def __init__(self, kind: StageKind, workers: int, steps: Sequence[Step]) -> None:
        self._kind: StageKind = kind
        self._workers = workers
        self._steps = steps
        self._apart = kind == "threads"
        self._crews = [_Sum() for _ in range(1 + (len(steps) if self._apart else 0))]
        self._busy_s = [0.0] * (2 + len(steps))

    def count(self, work: Work) -> None:
        """Add a batch."""
        if not self._steps:  # as quick as can be
            self._busy_s[0] += work.fetch_s
            self._busy_s[1] += work.copy_s
            self._crews[0].add(work.fetch_s + work.copy_s, work.cpu_s)
            return
        spent = [*work.stages, *(Spent() for _ in self._steps[len(work.stages) :])]
        busy_s = [work.fetch_s, *(one.busy_s for one in spent), work.copy_s]
        for index, seconds in enumerate(busy_s):
            self._busy_s[index] += seconds
        if len(self._crews) == 1:
            self._crews[0].add(sum(busy_s), work.cpu_s)
            return
        self._crews[0].add(work.fetch_s, work.cpu_s)
        for crew, one in zip(self._crews[1:], spent, strict=True):
            crew.add(one.busy_s + (work.copy_s if crew is self._crews[-1] else 0.0), one.cpu_s)

    def stages(self, samples: int, elapsed_s: float) -> tuple[StageTimes, ...]:
        """Return what each stage did, for so many samples in so many seconds."""
        found: list[StageTimes] = []
        names = [READ, *(step.name for step in self._steps), COPY]
        workers, crew, leader = self._workers, self._crews[0], READ
        for index, name in enumerate(names):
            leads = index < len(self._crews)
            if leads:
                crew, leader = self._crews[index], name
                workers = self._steps[index - 1].workers if index else self._workers
            found.append(
                StageTimes(
                    name,
                    self._kind,
                    workers,
                    samples,
                    self._busy_s[index],
                    max(0.0, elapsed_s * workers - crew.busy_s) if leads else 0.0,
                    crew.cpu_s if leads else None,
                    "" if leads else leader,
                )
            )
        return tuple(found)
