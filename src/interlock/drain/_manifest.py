"""The manifest: which shards are committed, one line each.

A row is committed when its shard's line is on the storage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from interlock.drain._files import lines_of, seal, sync, unseal
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.drain._layout import Layout


@final
@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One committed shard.

    Attributes:
        shard: Its name.
        rows: Number of rows.
        size_bytes: Bytes of its files.
        sha256: As `interlock.drain._digests.Digest` says.
        ids: Code of its ids, as `encode_ids` says.
    """

    shard: str
    rows: int
    size_bytes: int
    sha256: str
    ids: str

    def line(self) -> bytes:
        """Return the line of the manifest."""
        return seal(
            {"shard": self.shard, "rows": self.rows, "bytes": self.size_bytes, "sha256": self.sha256, "ids": self.ids}
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardRecord:
        """Undo `line`."""
        return cls(value["shard"], value["rows"], value["bytes"], value["sha256"], value["ids"])


@final
class LineLog:
    """A file of sealed lines to which lines are appended.

    Args:
        path: The file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            sync(path.parent)

    def append(self, lines: bytes) -> None:
        """Append lines; they are durable after `sync`."""
        left = memoryview(lines)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Wait until everything appended is on the storage."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


@final
@dataclass(frozen=True, slots=True)
class ManifestContent:
    """What a manifest says.

    Attributes:
        records: The committed shards, oldest first.
        whole_bytes: Offset at which a torn last line begins; else the length of the file.
        problems: What is wrong with lines before the last.
    """

    records: list[ShardRecord]
    whole_bytes: int
    problems: list[str]


def scan_manifest(layout: Layout) -> ManifestContent:
    """Return what the manifest says, and what is wrong with it."""
    records: list[ShardRecord] = []
    problems: list[str] = []
    content = layout.manifest.read_bytes() if layout.manifest.exists() else b""
    whole = 0
    for number, (end, line) in enumerate(lines_of(content), 1):
        value = unseal(line)
        if value is None and end == len(content):
            break
        whole = end
        if value is None:
            problems.append(f"line {number} does not match its check")
        elif not layout.owns_name(str(value.get("shard"))):
            problems.append(f"line {number} names {value.get('shard')!r}, which is no shard of this sink")
        else:
            records.append(ShardRecord.from_json(value))
    return ManifestContent(records, whole, problems)


def read_manifest(layout: Layout) -> ManifestContent:
    """Return what the manifest says.

    Raises:
        SinkConflictError: A line before the last is damaged, or names what cannot be a shard.
    """
    content = scan_manifest(layout)
    if content.problems:
        raise SinkConflictError(
            f"{layout.manifest} is damaged",
            why=content.problems[0],
            hint="restore it from a copy, or start again with --restart",
        )
    return content


def cut_torn_line(path: Path, whole: int) -> None:
    """Cut the torn line that a crash left at the end of a log."""
    if path.exists() and path.stat().st_size > whole:
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
