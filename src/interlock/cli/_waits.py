"""What a run waits for: its source, its model or its sink; and what limits the sink."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from interlock.drain._report import Meter, limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock.drain import Drain, DrainStatistics

Party: TypeAlias = Literal["source", "model", "sink"]

_OVER_S = 2.0
"""What limits a sink is told of that much time: of less it would jump."""


@final
class Waits:
    """Seconds of the main thread, by whom it waited for.

    Args:
        clock: Seconds, only ever rising.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[Party, float] = {"source": 0.0, "model": 0.0, "sink": 0.0}

    @contextmanager
    def on(self, party: Party) -> Iterator[None]:
        """Count the time inside as waiting for `party`."""
        began_s = self._clock()
        try:
            yield
        finally:
            self._seconds[party] += self._clock() - began_s

    def seconds(self, drained: DrainStatistics) -> dict[Party, float]:
        """Return the seconds by party.

        A model that runs asynchronously is waited for where its outputs are taken: so of the time spent on the sink,
        the share in which the drain waited for outputs to land is the model's.

        Args:
            drained: Statistics of the drain at this moment.
        """
        busy_s = drained.writers_s - drained.idle_s
        landing_s = self._seconds["sink"] * (drained.land_s / busy_s if busy_s > 0 else 0.0)
        return {
            "source": self._seconds["source"],
            "model": self._seconds["model"] + landing_s,
            "sink": self._seconds["sink"] - landing_s,
        }


@final
class Limits:
    """What limited a drain in the last seconds, in some words.

    Args:
        drain: The drain.
        clock: Seconds, only ever rising.
    """

    def __init__(self, drain: Drain, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter = Meter(drain.statistics(), drain.explain().setting)
        self._clock = clock
        self._read_s = clock()
        self._text = ""

    def text(self, drained: DrainStatistics) -> str:
        """Return it: `encoder 71 %, 2 writers`; empty where it is not the drain.

        Args:
            drained: Statistics of the drain at this moment.
        """
        if self._clock() - self._read_s >= _OVER_S:
            self._read_s = self._clock()
            record = self._meter.read(drained)
            self._text = limited(record.limit, record.writer, record.writers) if record.limit != "producer" else ""
        return self._text
