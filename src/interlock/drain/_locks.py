"""Locks of a folder: held by a process, and free when it ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, final

from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from pathlib import Path

_TRY_EVERY_S = 0.01

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _forget_locks() -> None:
    """In a forked child: let go of the parent's locks, which else outlive it in its children."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


@final
class FolderLock:
    """The right to write in a folder. The system takes it back when the process ends, however it ends.

    Args:
        path: The lock file; made if it is not there.
        sink: Shown in messages.
        wait_s: How long to wait for somebody else to let go.

    Raises:
        SinkConflictError: Somebody else holds it.
    """

    def __init__(self, path: Path, sink: str, *, wait_s: float = 0.0) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, wait_s)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise SinkConflictError(
                f"{sink} is being written by another drain",
                why=f"process {holder or 'unknown'} holds {path}",
                hint="wait until it ends, or write to another sink; processes of one job have a rank each",
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        _held.add(descriptor)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let somebody else write; a second call does nothing."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            with suppress(OSError):  # it is for messages
                os.ftruncate(self._descriptor, 0)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may not have let go of its copy yet
            finally:
                os.close(self._descriptor)


def _lock(descriptor: int, wait_s: float) -> None:
    """Take a lock, trying again for `wait_s`: no event tells that another process let go."""
    until_s = time.monotonic() + wait_s
    pause = threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            pause.wait(_TRY_EVERY_S)
        else:
            return


def is_locked(path: Path) -> bool:
    """Tell whether a live writer holds the lock at `path`.

    The lock itself is tried only if its last holder lives, so that asking does not get in the way of a writer that
    starts.
    """
    if not _is_alive(path):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _is_alive(path: Path) -> bool:
    try:
        os.kill(int(path.read_text("ascii")), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True
