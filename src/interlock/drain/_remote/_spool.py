"""A folder of this machine for shards on their way to a store, and for some that were fetched from it."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from interlock.drain._files import remove
from interlock.drain._locks import FolderLock
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIX = "interlock-spool-"
_MOST_FETCHED = 4


@final
class Spool:
    """The folder. It is made when it is needed, in the system's folder for temporaries, and goes with this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root: Path | None = None
        self._fetched: OrderedDict[str, Path] = OrderedDict()

    def path(self, name: str) -> Path:
        """Return where a shard is written."""
        return self._folder() / f"{name}.tmp"

    def fetched(self, name: str, download: Callable[[Path], None]) -> Path:
        """Return where a fetched shard lies, fetching it if it is not there; the last few stay.

        Raises:
            OSError: It cannot be fetched.
        """
        with self._lock:
            if name in self._fetched:
                self._fetched.move_to_end(name)
                return self._fetched[name]
        path = self._folder() / "fetched" / name
        try:
            download(path)
        except BaseException:
            remove(path)
            raise
        with self._lock:
            self._fetched[name] = path
            old = self._fetched.popitem(last=False)[1] if len(self._fetched) > _MOST_FETCHED else None
        if old is not None:
            remove(old)
        return path

    def forget(self, name: str) -> None:
        """Remove a fetched shard, which is no more in the store."""
        with self._lock:
            path = self._fetched.pop(name, None)
        if path is not None:
            remove(path)

    def _folder(self) -> Path:
        with self._lock:
            if self._root is None:
                _remove_abandoned()
                self._root, lock = _made()
                weakref.finalize(self, _end, self._root, lock, os.getpid())
            return self._root


def _made() -> tuple[Path, FolderLock]:
    """Return a new spool and its lock. It gets its name when it is locked: before, it would look abandoned."""
    begun = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = FolderLock(begun / "lock", "the spool")
    return begun.rename(begun.with_name(begun.name.removeprefix("."))), lock


def _end(root: Path, lock: FolderLock, pid: int) -> None:
    if pid == os.getpid():  # a forked child leaves it to its parent
        with suppress(OSError):
            remove(root)
        lock.release()


def _remove_abandoned() -> None:
    """Remove the spools of our own dead processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, SinkConflictError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and (path / "lock").exists():
                lock = FolderLock(path / "lock", "the spool")
                remove(path)
                lock.release()
