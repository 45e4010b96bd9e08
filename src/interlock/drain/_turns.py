"""Who may use a drain now: the process that made it, and of a thread one call at a time."""

from __future__ import annotations

import os

from interlock.errors import LeaseError


def refuse_other_process(sink: str, pid: int) -> None:
    """Refuse a forked child.

    Raises:
        LeaseError: `pid`, which made the drain, is another process.
    """
    if os.getpid() != pid:
        raise LeaseError(
            f"the drain of {sink} belongs to process {pid}",
            why="its writer thread did not survive the fork",
            hint="open a drain of its own, with a sink of its own, in each process",
        )


def refuse_inside(sink: str, *, is_inside: bool) -> None:
    """Refuse a call from within another one of the same thread, which else would wait for itself.

    Raises:
        LeaseError: It is one.
    """
    if is_inside:
        raise LeaseError(
            f"the drain of {sink} was called while it is in a call on this thread",
            why="a signal handler, a finaliser or an array did that",
            hint="have a signal handler raise, as SystemExit: leaving the with block commits what was put",
        )
