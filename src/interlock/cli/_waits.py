"""What a run waits for: its source, its model or its sink."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock.drain import DrainStatistics

Party: TypeAlias = Literal["source", "model", "sink"]


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
