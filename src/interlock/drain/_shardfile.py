"""Files that formats write shards into: their bytes are hashed on the way, and the time of both is counted."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any, final

from interlock.drain._digests import ALGORITHM, Running
from interlock.drain._times import hashing, writing

if TYPE_CHECKING:
    from pathlib import Path


class _Here(threading.local):
    hashed: dict[Path, Running] | None = None


_here = _Here()


def hash_here() -> dict[Path, Running]:
    """Have files that the calling thread opens from now on hashed while they are written; return where they are told.

    Nothing is told where digests are of a kind that is better made by several threads afterwards.
    """
    hashed: dict[Path, Running] = {}
    _here.hashed = hashed if ALGORITHM == "xxh3_128" else None
    return hashed


@final
class ShardFile(io.FileIO):
    """A file without a buffer that writes all that it is given.

    Args:
        path: Where it is; there is none yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._offset_bytes = 0
        self._running = Running() if _here.hashed is not None else None
        if _here.hashed is not None and self._running is not None:
            _here.hashed[path] = self._running

    def write(self, content: Any, /) -> int:
        """Write everything, in as many calls of the system as that takes.

        Raises:
            OSError: The storage refused; some of it may be written.
        """
        whole = left = memoryview(content).cast("B")
        with writing():
            while left:
                left = left[super().write(left) :]
        if self._running is not None:
            with hashing():
                self._running.write(self._offset_bytes, whole)
        self._offset_bytes += len(whole)
        return len(whole)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As a file does."""
        self._offset_bytes = super().seek(offset, whence)
        return self._offset_bytes
