"""How many lanes a drain should have, from what it measured: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

_WINDOW_S = 0.5
_JOBS_PER_LANE = 4
"""Shorter windows say nothing of a rate."""

_FIRST_S = 0.05
_FIRST_JOBS = 8
"""But when one lane is behind for so long, it gets a second: a short run would be over before more is known. It is not
judged, since so short a time gives no rate to judge it by."""

_WAITED = 0.5
"""Part of a window in which lanes were behind: below it they are not the limit."""

_GAIN = 1.1
"""What a further lane must bring."""


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    now_s: float
    waited_s: float
    written_bytes: int
    jobs: int


@final
class Growth:
    """Adds a lane when those that there are do not keep up; takes a third or later one back if it brought nothing.

    Args:
        most: Most lanes.

    Attributes:
        lanes: How many there should be.
        most: As given; may be lowered later.
    """

    def __init__(self, most: int) -> None:
        self.lanes = 1
        self.most = most
        self._settled = False
        self._start: _Sample | None = None
        self._rate_before = 0.0

    def observe(self, now_s: float, waited_s: float, written_bytes: int, jobs: int) -> int:
        """Take in how things are, and return how many lanes there should be.

        Args:
            now_s: On any clock.
            waited_s: Seconds in all in which rows that had landed waited for a lane, and `put` for room or a whole
                shard for being begun.
            written_bytes: Bytes in all that lanes have written.
            jobs: In how many jobs.
        """
        now = _Sample(now_s, waited_s, written_bytes, jobs)
        start = self._start
        if start is None or self._settled:
            self._start = now
            return self.lanes
        seconds = now.now_s - start.now_s
        ended = now.jobs - start.jobs
        is_first = self.lanes == 1 and seconds >= _FIRST_S and ended >= _FIRST_JOBS
        if not is_first and (seconds < _WINDOW_S or ended < _JOBS_PER_LANE * self.lanes):
            return self.lanes
        self._start = now
        if now.waited_s - start.waited_s < _WAITED * seconds:  # so the rate is that of the producer
            self._rate_before = 0.0
            return self.lanes
        rate = (now.written_bytes - start.written_bytes) / seconds
        if rate < _GAIN * self._rate_before:
            self.lanes -= 1
            self._settled = True
        elif self.lanes < self.most:
            self.lanes += 1
            self._rate_before = 0.0 if is_first else rate
        else:
            self._settled = True
        return self.lanes
