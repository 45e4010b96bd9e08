"""Files made durable: sync, replace, seal."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the storage.

    Raises:
        OSError: The storage refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files_of(path: Path) -> list[Path]:
    """Return the files that a shard consists of, sorted: the file itself, or those in the folder and below."""
    return sorted(entry for entry in path.rglob("*") if not entry.is_dir()) if path.is_dir() else [path]


def sync_shard(path: Path) -> None:
    """Sync every file of a shard, and its folders if it is one."""
    for file in files_of(path):
        sync(file)
    if path.is_dir():
        for folder in (path, *(entry for entry in path.rglob("*") if entry.is_dir())):
            sync(folder)


def size_of(path: Path) -> int:
    """Return the bytes of a shard."""
    return sum(file.stat().st_size for file in files_of(path))


def replace_file(path: Path, lines: Iterable[bytes], temporary: Path) -> None:
    """Give `path` a new content, durably; whoever looks sees the old one or the new one, whole."""
    with temporary.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_of(record: dict[str, Any]) -> int:
    """Return a CRC-32 of a record of plain values, whatever the order of its keys."""
    return zlib.crc32(json.dumps(record, separators=(",", ":"), sort_keys=True).encode())


def seal(record: dict[str, Any]) -> bytes:
    """Return `record` as a line of JSON that ends with a check of itself: the CRC-32 of the line without it."""
    body = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return body[:-1] + b',"check":%d}\n' % zlib.crc32(body)


def unseal(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line of `seal`, or None if the line is torn or damaged."""
    body, mark, check = line.rpartition(b',"check":')
    if not mark or not line.endswith(b"}\n") or check != b"%d}\n" % zlib.crc32(body + b"}"):
        return None
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
