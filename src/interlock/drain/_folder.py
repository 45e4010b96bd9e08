"""A dataset in a folder of this machine: shards are renamed, logs are appended to, and everything is synced."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, final

from interlock.drain._files import remove, replace_file, size_of, sync, sync_shard
from interlock.drain._layout import CONTROL, Layout, ranks_in
from interlock.drain._locks import FolderLock, is_locked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from interlock._core._protocols import Sink

_READ_BYTES = 1 << 20
"""Lines may be long: with fewer a line is put together from many pieces."""


@final
class LineLog:
    """A file of sealed lines to which lines are appended.

    Args:
        path: The file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._synced_bytes = os.fstat(self._descriptor).st_size
            if is_new:
                sync(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, lines: bytes) -> None:
        """Append lines, or nothing; they are durable after `sync`.

        Raises:
            OSError: The storage refused, or somebody removed the file, so that nobody would find what is appended.
        """
        before = os.fstat(self._descriptor)
        if not before.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "somebody removed it while it was written", str(self._path))
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            self._cut(before.st_size)
            raise

    def sync(self) -> None:
        """Wait until everything appended is on the storage.

        Raises:
            OSError: The storage refused. What was appended since the last `sync` is taken back: the system may hold it
                for written from now on, though it is not, so the next run must not find it there and believe it.
        """
        try:
            os.fsync(self._descriptor)
        except OSError:
            self._cut(self._synced_bytes)
            raise
        self._synced_bytes = os.fstat(self._descriptor).st_size

    def _cut(self, size_bytes: int) -> None:
        with suppress(OSError):  # then the next run cuts a torn line, and a whole one names a shard that is synced
            os.ftruncate(self._descriptor, size_bytes)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


@final
@dataclass(frozen=True, slots=True)
class Folder:
    """As in `Storage`.

    Attributes:
        root: The folder.
        layout: As in `Storage`.
    """

    root: Path
    layout: Layout

    @classmethod
    def at(cls, location: str, sink: Sink, rank: int = 0) -> Self:
        """Return the folder at a path."""
        return cls(Path(location).expanduser(), Layout(sink.suffix, rank))

    is_durable: ClassVar[bool] = False

    @property
    def place(self) -> str:
        """As in `Storage`."""
        return str(self.root)

    def of(self, rank: int) -> Self:
        """As in `Storage`."""
        return replace(self, layout=self.layout.of(rank))

    def path(self, name: str) -> Path:
        """Return the path of a name."""
        return self.root / name

    def where(self, name: str) -> str:
        """As in `Storage`."""
        return str(self.path(name))

    def refresh(self) -> None:
        """As in `Storage`: nothing is remembered."""

    def is_file(self) -> bool:
        """As in `Storage`."""
        return self.root.exists() and not self.root.is_dir()

    def looks_ours(self) -> bool:
        """As in `Storage`."""
        if not self.root.exists() or not any(self.root.iterdir()):
            return True
        control = self.path(CONTROL)
        if [entry.name for entry in self.root.iterdir()] != [CONTROL] or not control.is_dir():
            return False
        held = list(control.iterdir())
        folders = [entry for entry in held if entry.name.startswith(("tmp", "quarantine")) and entry.is_dir()]
        locks = [entry for entry in held if entry.name.startswith(("lock", "open")) and entry.is_file()]
        return len(held) == len(folders) + len(locks) and all(
            entry.suffix == ".tmp" for folder in folders for entry in folder.iterdir()
        )

    def make(self) -> None:
        """As in `Storage`."""
        for name in (CONTROL, self.layout.temporaries, self.layout.quarantine):
            self.path(name).mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """As in `Storage`."""
        return self.path(name).exists()

    def visible(self) -> list[str]:
        """As in `Storage`."""
        suffix = self.layout.suffix
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(("_", ".")) and (entry.name.endswith(suffix) if suffix else entry.is_dir())
            )

    def ranks(self) -> list[int]:
        """As in `Storage`."""
        control = self.path(CONTROL)
        return ranks_in((entry.name for entry in control.iterdir()), self.visible()) if control.is_dir() else [0]

    def read(self, name: str) -> bytes | None:
        """As in `Storage`."""
        try:
            return self.path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def replace(self, name: str, content: bytes) -> None:
        """As in `Storage`."""
        replace_file(self.path(name), [content], self._beside(name))

    def remove(self, *names: str) -> None:
        """As in `Storage`."""
        for name in names:
            remove(self.path(name))
        sync(self.path(CONTROL))

    def forget(self) -> None:
        """As in `Storage`."""
        names = self.layout
        with suppress(OSError):  # it holds something
            self.path(names.quarantine).rmdir()
        self.remove(names.manifest, names.failures, names.temporaries, names.lock)

    def lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """As in `Storage`."""
        end = 0
        try:
            with self.path(name).open("rb", buffering=_READ_BYTES) as file:
                for line in file:
                    end += len(line)
                    yield end, line
                    if not line.endswith(b"\n"):
                        return  # a live rank may be writing it: what it appends meanwhile is no line of its own
        except FileNotFoundError:
            return

    def log(self, name: str) -> LineLog:
        """As in `Storage`."""
        return LineLog(self.path(name))

    def sync_log(self, name: str) -> None:
        """As in `Storage`."""
        sync(self.path(name))

    def cut_log(self, name: str, whole_bytes: int) -> None:
        """As in `Storage`."""
        path = self.path(name)
        if path.exists() and path.stat().st_size > whole_bytes:
            with path.open("r+b") as file:
                file.truncate(whole_bytes)
                os.fsync(file.fileno())

    def replace_log(self, name: str, lines: Iterable[bytes]) -> None:
        """As in `Storage`."""
        replace_file(self.path(name), lines, self._beside(name))

    def lock(self, name: str, text: str, *, wait_s: float = 0.0) -> FolderLock:
        """As in `Storage`."""
        return FolderLock(self.path(name), text, wait_s=wait_s)

    def is_locked(self, name: str) -> bool:
        """As in `Storage`."""
        return is_locked(self.path(name))

    def temporary(self, name: str) -> Path:
        """As in `Storage`."""
        return self.path(self.layout.hidden(name))

    def clear(self) -> None:
        """As in `Storage`."""
        folder = self.path(self.layout.temporaries)
        for leftover in folder.iterdir() if folder.is_dir() else ():
            remove(leftover)

    def bring(self, name: str, *, hidden: bool = False) -> None:  # noqa: ARG002 - it is hidden until it is renamed
        """As in `Storage`."""
        sync_shard(self.temporary(name))

    def show(self, name: str) -> None:
        """As in `Storage`."""
        self.temporary(name).rename(self.path(name))

    def sync_shard(self, name: str) -> None:
        """As in `Storage`."""
        for path in (self.path(name), self.temporary(name)):
            if path.exists():
                sync_shard(path)

    def sync_names(self, *shown: str) -> None:
        """As in `Storage`."""
        try:
            sync(self.root)
        except OSError:  # then nothing tells whether they are there to stay: the next run must not adopt them
            for name in shown:
                with suppress(OSError):
                    self.path(name).rename(self.temporary(name))
            raise

    def size_of(self, name: str, *, hidden: bool = False) -> int | None:
        """As in `Storage`."""
        path = self.temporary(name) if hidden else self.path(name)
        return size_of(path) if path.exists() else None

    def fetch(self, name: str, *, hidden: bool = False) -> Path:
        """As in `Storage`: where it lies."""
        return self.temporary(name) if hidden else self.path(name)

    def remove_shard(self, name: str) -> None:
        """As in `Storage`."""
        temporary = self.temporary(name)
        remove(temporary)
        self.path(name).rename(temporary)
        remove(temporary)

    def isolate(self, name: str) -> str:
        """As in `Storage`."""
        target = self.path(self.layout.isolated(name))
        target.parent.mkdir(exist_ok=True)
        remove(target)
        self.path(name).rename(target)
        sync(self.root)
        return str(target)

    def _beside(self, name: str) -> Path:
        return self.path(f"{self.layout.temporaries}/{Path(name).name}.tmp")
