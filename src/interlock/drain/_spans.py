"""What the drain tells a trace."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from interlock._core._spans import Level, Span, host_track, report, traced

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def span(name: str, subject: str, number: int, size_bytes: int = 0) -> Iterator[None]:
    """Report what the block does as a span of the calling thread, if anybody listens.

    Args:
        name: What it does.
        subject: Which drain, as `drain 1`.
        number: Which put, from 0.
        size_bytes: Bytes moved.
    """
    if not traced():
        yield
        return
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        report(Span(host_track(), name, start_ns, time.perf_counter_ns(), number, size_bytes, subject))


def jobs_waiting(subject: str, count: int) -> None:
    """Report how many jobs are between `put` and the sink."""
    if traced():
        report(Level(subject, "jobs waiting", time.perf_counter_ns(), count))
