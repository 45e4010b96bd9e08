"""Where a dataset lies, and what can be done there: all that the drain asks of a folder or of a remote store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from interlock.drain._folder import Folder
from interlock.drain._sinks import is_url, open_format
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from interlock._core._protocols import Sink
    from interlock.drain._layout import Layout

CALL_S = 120.0
"""Bound on a call to a remote store where nobody said another."""


class Log(Protocol):
    """A file of sealed lines to which lines are appended."""

    def append(self, lines: bytes) -> None:
        """Append lines; they are durable after `sync`."""
        ...

    def sync(self) -> None:
        """Wait until everything appended is on the storage."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Lock(Protocol):
    """The right to write as a rank, or to open."""

    def release(self) -> None:
        """Let somebody else write; a second call does nothing."""
        ...


class Storage(Protocol):
    """A sink's folder as one rank sees it. Names are those of `layout`; every call may raise `OSError`.

    A shard is written to a path of the local machine, closed, *brought* to the storage and *shown* to readers.
    """

    @property
    def layout(self) -> Layout:
        """The names that this rank uses."""
        ...

    @property
    def place(self) -> str:
        """The folder, for messages."""
        ...

    @property
    def is_durable(self) -> bool:
        """Whether what was brought, and what a log holds, is on the storage in any case: nothing is gained by less."""
        ...

    def of(self, rank: int) -> Self:
        """Return the folder as another rank sees it."""
        ...

    def where(self, name: str) -> str:
        """Return where `name` is, for messages."""
        ...

    # ---------------------------------------------------------------- what is there

    def refresh(self) -> None:
        """Look again: what others did before this call is seen after it."""
        ...

    def is_file(self) -> bool:
        """Tell whether the place is a file, and so no place for shards."""
        ...

    def looks_ours(self) -> bool:
        """Tell whether there is no content but what a crash of ours leaves before `run.json` is complete."""
        ...

    def make(self) -> None:
        """Make the folders."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether there is a file or a log of that name."""
        ...

    def visible(self) -> list[str]:
        """Return the names that a reader of the dataset would read, ours or not, sorted."""
        ...

    def ranks(self) -> list[int]:
        """Return the ranks that have left something here, and 0."""
        ...

    # ---------------------------------------------------------------- small files, logs and locks

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it is not there."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Give a file a new content, durably; whoever looks sees the old one or the new one, whole."""
        ...

    def remove(self, *names: str) -> None:
        """Remove files, folders and logs of ours that are there, durably."""
        ...

    def lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield each line of a log with the offset of its end; none if it is not there. The last one may be torn."""
        ...

    def log(self, name: str) -> Log:
        """Return a log to append to; made if it is not there."""
        ...

    def sync_log(self, name: str) -> None:
        """Wait until a log that is there is on the storage, whoever appended to it."""
        ...

    def cut_log(self, name: str, whole_bytes: int) -> None:
        """Cut the torn line that a crash left at the end of a log."""
        ...

    def replace_log(self, name: str, lines: Iterable[bytes]) -> None:
        """Give a log a new content, durably; whoever looks sees the old one or the new one, whole."""
        ...

    def lock(self, name: str, text: str, *, wait_s: float = 0.0) -> Lock:
        """Take a lock.

        Args:
            name: Which.
            text: The sink, for messages.
            wait_s: How long to wait for somebody else to let go.

        Raises:
            SinkConflictError: Somebody else holds it.
        """
        ...

    def is_locked(self, name: str) -> bool:
        """Tell whether a live writer holds a lock."""
        ...

    def forget(self) -> None:
        """Remove, durably, all that this rank left but shards, those in quarantine, and its columns."""
        ...

    # ---------------------------------------------------------------- shards

    def temporary(self, name: str) -> Path:
        """Return where a shard is written: a path on this machine at which nothing is yet."""
        ...

    def clear(self) -> None:
        """Remove what dead writers of this rank left unfinished."""
        ...

    def bring(self, name: str, *, hidden: bool = False) -> None:
        """Bring a closed shard to the storage. Any thread may do it, and it may take long.

        Args:
            name: Which.
            hidden: Keep it from readers until `show`. Else a storage that cannot rename shows it at once.
        """
        ...

    def show(self, name: str) -> None:
        """Let readers see a shard that was brought. Its path is no more."""
        ...

    def sync_shard(self, name: str) -> None:
        """Wait until a shard is on the storage, shown or hidden, if it is there."""
        ...

    def sync_names(self, *shown: str) -> None:
        """Wait until the names of what was shown, moved and removed are on the storage.

        Args:
            shown: Shards that are hidden again if that fails, so that the next run does not believe in them.
        """
        ...

    def size_of(self, name: str, *, hidden: bool = False) -> int | None:
        """Return the bytes of a shard that is shown, or of one that is hidden; None if it is not there."""
        ...

    def fetch(self, name: str, *, hidden: bool = False) -> Path:
        """Return a path on this machine at which the shard can be read until others are fetched.

        Raises:
            FileNotFoundError: It is not there.
        """
        ...

    def remove_shard(self, name: str) -> None:
        """Remove a shard so that readers see it whole or not at all."""
        ...

    def isolate(self, name: str) -> str:
        """Move a shard out of readers' sight, to quarantine; return where it is."""
        ...


def opened_storage(text: str, *, rank: int = 0, timeout_s: float = CALL_S) -> tuple[Sink, Storage]:
    """Return the format and the place that a sink's text names, without touching it.

    Args:
        text: As `parquet:out` or `parquet:s3://bucket/out`.
        rank: As which rank.
        timeout_s: Bound on each call to a remote store.

    Raises:
        UsageError: There is no such sink, or what it needs is not installed.
    """
    sink, location = open_format(text)
    if is_url(location):
        if hasattr(sink, "publish"):
            raise UsageError(f"cannot use {text}", why=f"{sink.scheme}: needs a folder of this machine")
        from interlock.drain._remote._bucket import Bucket  # noqa: PLC0415 - local sinks need nothing of it

        return sink, Bucket(location, sink, rank, timeout_s)
    return sink, Folder.at(location, sink, rank)
