"""What the drain tells a trace."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from interlock._core._spans import Level, Span, host_track, report, traced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


_SILENT = nullcontext()


def span(name: str, subject: str, number: int, size_bytes: int = 0) -> AbstractContextManager[None]:
    """Return a context manager: what is done inside is reported as a span of the calling thread, if anybody listens.

    Args:
        name: What it does.
        subject: Which drain, as `drain 1`.
        number: Which put, from 0.
        size_bytes: Bytes moved.
    """
    return _reported(name, subject, number, size_bytes) if traced() else _SILENT


@contextmanager
def _reported(name: str, subject: str, number: int, size_bytes: int) -> Iterator[None]:
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        report(Span(host_track(), name, start_ns, time.perf_counter_ns(), number, size_bytes, subject))


def jobs_waiting(subject: str, count: int) -> None:
    """Report how many jobs are between `put` and the sink."""
    if traced():
        report(Level(subject, "jobs waiting", time.perf_counter_ns(), count))
