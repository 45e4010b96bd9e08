"""Where things lie in a sink's folder, and who may write there.

::

    PATH/part-<run>-<number><suffix>   the shards: all that a reader of the dataset sees
    PATH/_interlock/run.json           what the dataset is
                    manifest.jsonl     one line per committed shard
                    failures.jsonl     one line per failure of a row
                    lock               held by the one live writer
                    open               held for a moment, by whoever opens, settles or rewrites
                    tmp/               shards being written; names end in .tmp
                    quarantine/        shards that nobody vouches for; names end in .quarantined
                    unsynced.json      there while shards are that were not synced: see `_unsynced`

That is rank 0. Rank 3 has the same for itself, but for `run.json` and `open`: `part-<run>-r00003-<number><suffix>`,
`manifest-r00003.jsonl`, `failures-r00003.jsonl`, `lock-r00003`, `tmp-r00003/`, `quarantine-r00003/`,
`unsynced-r00003.json`, and `run-r00003.json` with the schema of its rows. No two processes write to one file.

Readers of Parquet skip names that begin with an underscore, and no glob for ``*.parquet`` meets a temporary.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, final

from interlock.drain._files import remove, sync
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = "_interlock"
MOST_RANKS = 100_000
_NAME = re.compile(r"part-(?P<run>[0-9a-f]{8})-(?:r(?P<rank>[0-9]{5})-)?(?P<number>[0-9]{6,12})(?P<suffix>\.[a-z]+)?")
_OF_RANK = re.compile(r"(?:run|manifest|failures|lock|tmp|quarantine|unsynced)-r(?P<rank>[0-9]{5})(?:\.jsonl?)?")
_TRY_EVERY_S = 0.01


class ShardName(NamedTuple):
    """What a shard's name tells."""

    run: str
    rank: int
    number: int
    suffix: str


def parse_name(name: str) -> ShardName | None:
    """Return what a shard's name tells, or None if it is not a shard's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return ShardName(match["run"], int(match["rank"] or 0), int(match["number"]), match["suffix"] or "")


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one rank of a sink.

    Attributes:
        root: The folder.
        suffix: End of a shard's name; empty where a shard is a folder.
        rank: Whose paths.
    """

    root: Path
    suffix: str
    rank: int = 0

    def of(self, rank: int) -> Self:
        """Return the paths of another rank."""
        return replace(self, rank=rank)

    @property
    def _tag(self) -> str:
        return f"-r{self.rank:05d}" if self.rank else ""

    @property
    def control(self) -> Path:
        """Our own folder."""
        return self.root / CONTROL

    @property
    def run_file(self) -> Path:
        """What the dataset is."""
        return self.control / "run.json"

    @property
    def schema_file(self) -> Path:
        """The columns that this rank writes."""
        return self.control / f"run{self._tag}.json"

    @property
    def opening(self) -> Path:
        """Held by whoever changes what belongs to no rank or to a dead one."""
        return self.control / "open"

    @property
    def manifest(self) -> Path:
        """The committed shards."""
        return self.control / f"manifest{self._tag}.jsonl"

    @property
    def failures(self) -> Path:
        """The failures of rows."""
        return self.control / f"failures{self._tag}.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the writer."""
        return self.control / f"lock{self._tag}"

    @property
    def temporaries(self) -> Path:
        """Folder of what is being written."""
        return self.control / f"tmp{self._tag}"

    @property
    def quarantine(self) -> Path:
        """Folder of what nobody vouches for."""
        return self.control / f"quarantine{self._tag}"

    @property
    def unsynced(self) -> Path:
        """Note that shards of this rank were not synced."""
        return self.control / f"unsynced{self._tag}.json"

    def shard_name(self, run: str, number: int) -> str:
        """Return the name of a shard."""
        return f"part-{run[:8]}{self._tag}-{number:06d}{self.suffix}"

    def owns_name(self, name: str) -> bool:
        """Tell whether `name` is a shard's name in this layout; such a name never leads out of the folder."""
        parsed = parse_name(name)
        return parsed is not None and parsed.suffix == self.suffix

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

    def ranks(self) -> list[int]:
        """Return the ranks that have left something here, and 0."""
        found = {0}
        if self.control.is_dir():
            matches = (_OF_RANK.fullmatch(entry.name) for entry in self.control.iterdir())
            found |= {int(match["rank"]) for match in matches if match}
            found |= {parsed.rank for parsed in map(parse_name, self.visible()) if parsed}
        return sorted(found)

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
        held = list(self.control.iterdir())
        folders = [entry for entry in held if entry.name.startswith(("tmp", "quarantine")) and entry.is_dir()]
        locks = [entry for entry in held if entry.name.startswith(("lock", "open")) and entry.is_file()]
        return len(held) == len(folders) + len(locks) and all(
            entry.suffix == ".tmp" for folder in folders for entry in folder.iterdir()
        )


def set_aside(layout: Layout, name: str) -> Path:
    """Move a shard into the quarantine of a rank; return where it is now."""
    layout.quarantine.mkdir(exist_ok=True)
    place = layout.quarantine / f"{name}.quarantined"
    remove(place)
    (layout.root / name).rename(place)
    sync(layout.root)
    return place


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


def take_lock(path: Path, sink: str) -> FolderLock | None:
    """Return the lock at `path`, or None if somebody else holds it."""
    try:
        return FolderLock(path, sink)
    except SinkConflictError:
        return None


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
