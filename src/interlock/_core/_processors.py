"""Processors: how many there are, and whether this process gets them when it wants them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import final

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TASKS = Path("/proc/self/task")


def processors(quota: Path = _QUOTA) -> float:
    """Return how many processors this process may use: those that it may run on, within its container's quota.

    Args:
        quota: File of the container's control group.
    """
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        limit, period = quota.read_text(encoding="ascii").split()
        return max(0.1, min(count, int(limit) / int(period)))
    except (OSError, ValueError):  # no quota
        return count


def one_thread_at_a_time() -> bool:
    """Tell whether this Python has an interpreter lock that is in use."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


@final
class Turns:
    """How long the threads of this process ran, and how long they could have run had a processor been free.

    The system counts both for each thread. Reading them takes some ten microseconds a thread, so it is done seldom;
    what a thread did after the last time is not seen if it has ended by then.

    Args:
        tasks: Folder with a folder for each thread.

    Source: `Documentation/scheduler/sched-stats.rst` of Linux, "/proc/<pid>/schedstat". Elsewhere both are 0.

    Attributes:
        ran_s: Seconds on a processor, summed over threads, since it was made.
        delayed_s: Seconds in line for one.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._seen = self._read()
        self.ran_s = 0.0
        self.delayed_s = 0.0

    def update(self) -> None:
        """Take in what happened since the last time."""
        now = self._read()
        for thread, (ran_ns, delayed_ns) in now.items():
            before_ran_ns, before_delayed_ns = self._seen.get(thread, (0, 0))
            self.ran_s += max(0, ran_ns - before_ran_ns) / 1e9
            self.delayed_s += max(0, delayed_ns - before_delayed_ns) / 1e9
        self._seen = now

    def _read(self) -> dict[str, tuple[int, int]]:
        try:
            threads = os.listdir(self._tasks)  # noqa: PTH208 - names are wanted
        except OSError:
            return {}
        return {thread: both for thread in threads if (both := self._read_one(thread)) is not None}

    def _read_one(self, thread: str) -> tuple[int, int] | None:
        try:
            ran_ns, delayed_ns, *_ = (self._tasks / thread / "schedstat").read_text(encoding="ascii").split()
            return int(ran_ns), int(delayed_ns)
        except (OSError, ValueError):  # it has just ended, or the system does not count
            return None
