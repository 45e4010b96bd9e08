"""Where things lie in a sink's folder, and who may write there.

::

    PATH/part-<run>-<number><suffix>   the shards: all that a reader of the dataset sees
    PATH/_interlock/run.json           what the dataset is
                    manifest.jsonl     one line per committed shard
                    failures.jsonl     one line per failure of a row
                    lock               held by the one live writer
                    tmp/               shards being written; names end in .tmp
                    quarantine/        shards that nobody vouches for; names end in .quarantined

Readers of Parquet skip names that begin with an underscore, and no glob for ``*.parquet`` meets a temporary.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = "_interlock"
_NAME = re.compile(r"part-(?P<run>[0-9a-f]{8})-(?P<number>[0-9]{6,12})(?P<suffix>\.[a-z]+)?")


def parse_name(name: str) -> tuple[str, int, str] | None:
    """Return the run, number and suffix that a shard's name tells, or None if it is not a shard's name."""
    match = _NAME.fullmatch(name)
    return (match["run"], int(match["number"]), match["suffix"] or "") if match else None


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one sink.

    Attributes:
        root: The folder.
        suffix: End of a shard's name; empty where a shard is a folder.
    """

    root: Path
    suffix: str

    @property
    def control(self) -> Path:
        """Our own folder."""
        return self.root / CONTROL

    @property
    def run_file(self) -> Path:
        """What the dataset is."""
        return self.control / "run.json"

    @property
    def manifest(self) -> Path:
        """The committed shards."""
        return self.control / "manifest.jsonl"

    @property
    def failures(self) -> Path:
        """The failures of rows."""
        return self.control / "failures.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the writer."""
        return self.control / "lock"

    @property
    def temporaries(self) -> Path:
        """Folder of what is being written."""
        return self.control / "tmp"

    @property
    def quarantine(self) -> Path:
        """Folder of what nobody vouches for."""
        return self.control / "quarantine"

    def shard_name(self, run: str, number: int) -> str:
        """Return the name of a shard."""
        return f"part-{run[:8]}-{number:06d}{self.suffix}"

    def owns_name(self, name: str) -> bool:
        """Tell whether `name` is a shard's name in this layout; such a name never leads out of the folder."""
        parsed = parse_name(name)
        return parsed is not None and parsed[2] == self.suffix

    def temporary(self, name: str) -> Path:
        """Return where `name` is written before it is shown."""
        return self.temporaries / f"{name}.tmp"

    def visible(self) -> list[str]:
        """Return the names in the folder that a reader of the dataset would read, ours or not, sorted."""
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(("_", "."))
                and (entry.name.endswith(self.suffix) if self.suffix else entry.is_dir())
            )

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.control, self.temporaries, self.quarantine):
            folder.mkdir(parents=True, exist_ok=True)

    def looks_ours(self) -> bool:
        """Tell whether the folder has no content but what a crash of ours leaves before `run.json` is complete."""
        if not self.root.exists() or not any(self.root.iterdir()):
            return True
        if [entry.name for entry in self.root.iterdir()] != [CONTROL] or not self.control.is_dir():
            return False
        known = {self.lock, self.temporaries, self.quarantine}
        held = set(self.control.iterdir())
        folders = [folder for folder in (self.temporaries, self.quarantine) if folder.is_dir()]
        return held <= known and all(entry.suffix == ".tmp" for folder in folders for entry in folder.iterdir())


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

    Raises:
        SinkConflictError: Somebody else holds it.
    """

    def __init__(self, path: Path, sink: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise SinkConflictError(
                f"{sink} is being written by another drain",
                why=f"process {holder or 'unknown'} holds {path}",
                hint="wait until it ends, or write to another sink",
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(descriptor)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let somebody else write; a second call does nothing."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            os.ftruncate(self._descriptor, 0)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may not have let go of its copy yet
            os.close(self._descriptor)


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
