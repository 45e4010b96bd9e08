"""What is said of worker processes that cannot be started, or died."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import multiprocessing.reduction
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from interlock.errors import PeerError, UsageError

if TYPE_CHECKING:
    from interlock.feed._stages import Chain


def refuse_in_a_starting_worker() -> None:
    """Say what a script without a guard has done: each worker runs it again.

    Raises:
        UsageError: This process is a worker that is being started.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise UsageError(
            "a feed with worker processes was begun by a worker process that is itself being started",
            why="each worker runs the script once more, to have its functions and classes",
            hint='put the loop under `if __name__ == "__main__":`, or use threads',
        )


def why_unsendable(source: Any, chain: Chain | None) -> str:
    """Return why workers cannot be given a source and stages; empty if they can."""
    for name, part in _parts(source, chain):
        try:
            data = bytes(multiprocessing.reduction.ForkingPickler.dumps(part))
            if b"__main__" in data and getattr(sys.modules["__main__"], "__file__", None) is None:
                return f"{name} cannot be sent to another process: it is defined at a prompt or in a notebook"
        except Exception as error:  # noqa: BLE001 - any object may refuse in its own way
            return f"{name} cannot be sent to another process: {type(error).__name__}: {error}"
    return ""


def _parts(source: Any, chain: Chain | None) -> list[tuple[str, Any]]:
    steps = () if chain is None else chain.stages
    name = getattr(source, "__qualname__", None) or type(source).__name__
    return [(f"the source {name}", source), *((f"stage {stage.name!r}", stage.function) for stage in steps)]


def unsendable(source: Any, chain: Chain | None, error: Exception) -> UsageError:
    """Return the error for a source or stages that could not be sent, for that reason."""
    if isinstance(error, AssertionError):  # so says multiprocessing itself
        return UsageError("a worker process cannot be started here", why=str(error), hint="use threads")
    culprit = why_unsendable(source, chain).partition(" cannot be sent")[0] or "the source"
    return UsageError(
        f"{culprit} cannot be sent to a worker process",
        why=f"{type(error).__name__}: {error}",
        hint="define functions and classes at module level, and open files when they are first needed; or use threads",
    )


def stillborn(cause: str) -> UsageError:
    """Return the error for a worker that ended by itself while it started."""
    return UsageError(
        f"a worker process {cause} before it was ready",
        why="what it printed says why: a script whose loop is not guarded runs again in each worker, and what is "
        "defined in a notebook or at a prompt is not there",
        hint='put the loop under `if __name__ == "__main__":` and functions into a file, or use threads',
    )


def reap(error: BaseException) -> int | None:
    """Return the exit code of a process that `multiprocessing` has begun and lost.

    It writes to the process before it gives back the object that knows its number.
    """
    trace = error.__traceback__
    while trace is not None:
        pid = getattr(trace.tb_frame.f_locals.get("self"), "pid", None)
        if isinstance(pid, int):
            with contextlib.suppress(OSError):
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        trace = trace.tb_next
    return None


def fate(code: int | None) -> str:
    """Return what became of a process with an exit code, to go behind "the worker process"."""
    if code is None:
        return "is gone"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def killed(cause: str, tries: int) -> PeerError:
    """Return the error for a sample that so many workers died of."""
    return PeerError(
        f"the worker process {cause}", why=f"it was at this sample, as was another one before: {tries} of {tries}"
    )
