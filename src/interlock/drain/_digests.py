"""Digests of shards: what the manifest says their bytes are.

`xxh3_128` where `xxhash` is installed, else `sha256`, which takes ten times the processor and more. Both tell what a
disk or a copy did to a shard; neither tells who did it on purpose, who would write the manifest anew as well.

| digest | of a file | of a folder |
| --- | --- | --- |
| `sha256` | the SHA-256 of its bytes | that of, for each file, the line `PATH SIZE` and the SHA-256 of its blocks |
| `xxh3_128` | the XXH3 (128 bits) of that of its blocks | that of, for each file, the line `PATH SIZE` and its blocks |

Files come in the order of their paths. Blocks have 16 MiB; with `xxh3_128` a first one of 64 KiB comes before them,
since formats write their headers anew at the end: so the digest is known when a file is closed (see `Running`). What
was not hashed while it was written is read again, by a few threads: one alone is slower than a disk.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from interlock.drain._files import files_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Algorithm: TypeAlias = Literal["sha256", "xxh3_128"]

ALGORITHM: Final[Algorithm] = "xxh3_128" if find_spec("xxhash") else "sha256"
"""What new shards get."""

HEAD_BYTES = 64 << 10
BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_MOST_THREADS = 8
_ALONE_BYTES = 4 << 20
"""So much is read faster than threads are started."""


def _new(algorithm: str) -> Any:
    """Return what hashes bytes."""
    if algorithm == "sha256":
        return hashlib.sha256()
    import xxhash  # noqa: PLC0415 - an extra

    return xxhash.xxh3_128()


def _algorithm_of(digest: str) -> Algorithm:
    """Return how a digest was made.

    Raises:
        UsageError: It cannot be made here.
    """
    name = digest.partition(":")[0]
    if name == "sha256":
        return "sha256"
    if name != "xxh3_128":
        raise UsageError(f"digests of the kind {name!r} are not known", hint="install a newer version of interlock")
    if find_spec("xxhash") is None:
        raise UsageError(
            "the digests of these shards cannot be compared",
            why="they are XXH3, and xxhash is not installed",
            hint="pip install xxhash",
        )
    return "xxh3_128"


@final
class Running:
    """The blocks of a file that is written from its begin to its end; only its head may be written again."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._ended: list[bytes] = []
        self._block = _new("xxh3_128")
        self._block_bytes = 0
        self._follows = True
        self.size_bytes = 0

    def write(self, offset_bytes: int, content: memoryview) -> None:
        """Take in bytes that were written at an offset."""
        end = offset_bytes + len(content)
        if offset_bytes == self.size_bytes:
            self._append(content)
        elif end <= len(self._head):
            self._head[offset_bytes:end] = content
        else:
            self._follows = False

    def blocks(self) -> list[bytes] | None:
        """Return the digests of the blocks; None if the file was not written as it should be."""
        if not self._follows:
            return None
        head = _new("xxh3_128")
        head.update(self._head)
        return [head.digest(), *self._ended, *([self._block.digest()] if self._block_bytes else [])]

    def _append(self, content: memoryview) -> None:
        self.size_bytes += len(content)
        room = HEAD_BYTES - len(self._head)
        if room:
            self._head += content[:room]
            content = content[room:]
        while content:
            part = content[: BLOCK_BYTES - self._block_bytes]
            self._block.update(part)
            self._block_bytes += len(part)
            content = content[len(part) :]
            if self._block_bytes == BLOCK_BYTES:
                self._ended.append(self._block.digest())
                self._block, self._block_bytes = _new("xxh3_128"), 0


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """What one thread hashes at a time."""

    algorithm: Algorithm
    file: Path
    offset_bytes: int
    size_bytes: int

    def digest(self) -> bytes:
        digest = _new(self.algorithm)
        left = self.size_bytes
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset_bytes)
            while left and (content := file.read(min(left, _READ_BYTES))):
                digest.update(content)
                left -= len(content)
        made: bytes = digest.digest()
        return made


@final
class Digest:
    """The digest of a shard whose bytes do not change any more.

    Args:
        path: The shard.
        algorithm: How to make it.
        known: Blocks of files that were hashed while they were written.
    """

    def __init__(
        self, path: Path, algorithm: Algorithm = ALGORITHM, known: Mapping[Path, Running] | None = None
    ) -> None:
        self._path = path
        self._algorithm: Algorithm = algorithm
        self._known = known or {}
        self._files: list[tuple[Path, int, list[bytes]]] = []
        self._parts: list[tuple[_Part, list[bytes], int]] = []
        self._next = 0
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin, on threads of its own; not if there is so little to read that `wait` might as well.

        Raises:
            OSError: The storage refused.
        """
        self._prepare()
        if sum(part.size_bytes for part, _, _ in self._parts) <= _ALONE_BYTES:
            return
        count = min(_MOST_THREADS, os.cpu_count() or 1, len(self._parts))
        self._threads = [
            threading.Thread(target=self._work, name="interlock-drain hash", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            with suppress(RuntimeError):  # no thread starts while the interpreter ends: then `wait` does it all
                thread.start()

    def wait(self) -> str:
        """Return the digest: the algorithm, a colon, and hexadecimal digits.

        Blocks: until it is known; helps.

        Raises:
            OSError: The storage refused.
        """
        if not self._files:
            self._prepare()
        self._work()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error
        return f"{self._algorithm}:{self._whole()}"

    def _prepare(self) -> None:
        for file in files_of(self._path):
            size_bytes = file.stat().st_size
            running = self._known.get(file)
            known = running.blocks() if running is not None and running.size_bytes == size_bytes else None
            cuts = self._cuts(size_bytes)
            blocks = known or [b""] * len(cuts)
            self._files.append((file, size_bytes, blocks))
            if known is None:
                self._parts += [
                    (_Part(self._algorithm, file, start, size), blocks, at) for at, (start, size) in enumerate(cuts)
                ]

    def _cuts(self, size_bytes: int) -> list[tuple[int, int]]:
        """Return offset and size of each block of a file."""
        if self._algorithm == "sha256" and not self._path.is_dir():
            return [(0, size_bytes)]
        head_bytes = min(HEAD_BYTES, size_bytes) if self._algorithm == "xxh3_128" else 0
        cuts = [(0, head_bytes)] if head_bytes else []
        cuts += [(at, min(BLOCK_BYTES, size_bytes - at)) for at in range(head_bytes, size_bytes, BLOCK_BYTES)]
        return cuts or [(0, 0)]

    def _work(self) -> None:
        while self._error is None:
            with self._lock:
                number = self._next
                self._next += 1
            if number >= len(self._parts):
                return
            part, blocks, at = self._parts[number]
            try:
                blocks[at] = part.digest()
            except Exception as error:  # noqa: BLE001 - else a part without a digest would count as one
                self._error = error

    def _whole(self) -> str:
        is_folder = self._path.is_dir()
        if self._algorithm == "sha256" and not is_folder:
            return self._files[0][2][0].hex()
        whole = _new(self._algorithm)
        for file, size_bytes, blocks in self._files:
            if is_folder:
                whole.update(f"{file.relative_to(self._path).as_posix()} {size_bytes}\n".encode())
            for block in blocks:
                whole.update(block)
        made: str = whole.hexdigest()
        return made


def digest_of(path: Path) -> str:
    """Return the digest of a shard, of the kind that new ones get.

    Blocks: while it reads the shard.

    Raises:
        OSError: The storage refused.
    """
    digest = Digest(path)
    digest.start()
    return digest.wait()


def has_digest(path: Path, wanted: str) -> bool:
    """Tell whether a shard has a digest, whatever its kind.

    Blocks: while it reads the shard.

    Raises:
        OSError: The storage refused.
        UsageError: Digests of that kind cannot be made here.
    """
    digest = Digest(path, _algorithm_of(wanted))
    digest.start()
    return digest.wait() == wanted


def hash_block(content: bytes) -> bytes:
    """Hash a block as those of new shards are: for who measures how fast that is."""
    block = _new(ALGORITHM)
    block.update(content)
    made: bytes = block.digest()
    return made


def check_known(digest: str) -> None:
    """Refuse a digest that cannot be compared with.

    Raises:
        UsageError: It is of a kind that is not known here, or its library is not installed.
    """
    _algorithm_of(digest)
