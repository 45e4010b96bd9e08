"""Marks on queues of operations: what host and simulated devices tell a trace with."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import final

from interlock._core._fence import Fence
from interlock._core._spans import Span, report


@final
@dataclass(slots=True, eq=False)
class Mark:
    """A point of a queue.

    Attributes:
        track: Name of the queue.
        at_ns: When the queue came to it; 0 before.
        fence: Reached then.
    """

    track: str
    at_ns: int = 0
    fence: Fence = Fence.EMPTY

    def take(self) -> None:
        """Be reached: what the queue runs."""
        self.at_ns = time.perf_counter_ns()


@final
class MarkedSpans:
    """Spans whose marks are not all reached. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[tuple[Mark, Mark, str, int, int]] = []

    def add(self, start: Mark, end: Mark, name: str, size_bytes: int, number: int) -> None:
        """Remember a span."""
        with self._lock:
            self._pending.append((start, end, name, size_bytes, number))

    def report_due(self) -> None:
        """As in `Marks`. A span whose queue failed is forgotten."""
        due = []
        with self._lock:
            pending, self._pending = self._pending, []
            for entry in pending:  # each is asked once: it may be reached meanwhile
                if entry[1].at_ns:
                    due.append(entry)
                elif not entry[1].fence.failure():
                    self._pending.append(entry)
        for start, end, name, size_bytes, number in due:
            report(Span(start.track, name, start.at_ns, end.at_ns, number, size_bytes))

    def unreported(self) -> Fence:
        """As in `Marks`."""
        with self._lock:
            return Fence.EMPTY.join(*(end.fence for _, end, *_ in self._pending))
