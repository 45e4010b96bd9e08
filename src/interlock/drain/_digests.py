"""Digests of shards, computed by a few threads: one alone is slower than a disk."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock.drain._files import files_of

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_MOST_THREADS = 8


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """What one thread hashes at a time."""

    file: Path
    offset_bytes: int
    size_bytes: int

    def digest(self) -> bytes:
        digest = hashlib.sha256()
        left = self.size_bytes
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset_bytes)
            while left and (content := file.read(min(left, _READ_BYTES))):
                digest.update(content)
                left -= len(content)
        return digest.digest()


@final
class Digest:
    """The digest of a shard whose bytes do not change any more.

    Of a file: its SHA-256. Of a folder: the SHA-256 of, for each file in it in the order of the paths, the line
    `PATH SIZE` and the SHA-256 digests of the file's blocks of 16 MiB.

    Args:
        path: The shard.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[_Part] = []
        self._digests: list[bytes] = []
        self._next = 0
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin, on threads of its own.

        Raises:
            OSError: The storage refused.
        """
        self._prepare()
        count = min(_MOST_THREADS, os.cpu_count() or 1, len(self._parts))
        self._threads = [
            threading.Thread(target=self._work, name="interlock-drain hash", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            with suppress(RuntimeError):  # no thread starts while the interpreter ends: then `wait` does it all
                thread.start()

    def wait(self) -> str:
        """Return the digest, in hexadecimal.

        Blocks: until it is known; helps.

        Raises:
            OSError: The storage refused.
        """
        if not self._parts:
            self._prepare()
        self._work()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error
        return self._whole() if self._path.is_dir() else self._digests[0].hex()

    def _prepare(self) -> None:
        for file in files_of(self._path):
            size = file.stat().st_size
            block = BLOCK_BYTES if self._path.is_dir() else size
            self._parts += [_Part(file, start, min(block, size - start)) for start in range(0, size, block or 1)]
            if not size:
                self._parts.append(_Part(file, 0, 0))
        self._digests = [b""] * len(self._parts)

    def _work(self) -> None:
        while self._error is None:
            with self._lock:
                number = self._next
                self._next += 1
            if number >= len(self._parts):
                return
            try:
                self._digests[number] = self._parts[number].digest()
            except Exception as error:  # noqa: BLE001 - else a part without a digest would count as one
                self._error = error

    def _whole(self) -> str:
        whole = hashlib.sha256()
        for part, digest in zip(self._parts, self._digests, strict=True):
            if not part.offset_bytes:
                whole.update(f"{part.file.relative_to(self._path).as_posix()} {part.file.stat().st_size}\n".encode())
            whole.update(digest)
        return whole.hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a shard.

    Blocks: while it reads the shard.

    Raises:
        OSError: The storage refused.
    """
    digest = Digest(path)
    digest.start()
    return digest.wait()
