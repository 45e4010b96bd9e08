"""Digests of files too large to read whole: evenly spaced blocks, the first and the last always among them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from interlock.errors import SourceError
from interlock.feed.sources._storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK_BYTES = 64 << 10
_BLOCKS = 256
"""16 MiB in all: a source up to this size is read whole."""


def digest_files(folder: str, names: Iterable[str]) -> str:
    """Return the SHA-256 of names, sizes and sampled blocks of the files `names` in `folder`.

    Raises:
        SourceError: One of them cannot be read.
    """
    names = list(names)
    blocks_each = max(1, _BLOCKS // max(1, len(names)))
    total = hashlib.sha256()
    for name in names:
        total.update(f"{name}\0{digest_file(join(folder, name), blocks=blocks_each)}\n".encode())
    return total.hexdigest()


def digest_file(path: str, *, blocks: int = _BLOCKS) -> str:
    """Return the SHA-256 of the size and of `blocks` evenly spaced blocks of a file; of one block, it is the last.

    Raises:
        SourceError: It cannot be read.
    """
    digest = hashlib.sha256()
    try:
        storage = Storage()
        size = storage.stamp(path).size_bytes
        digest.update(f"{size}\n".encode())
        for offset in _offsets(size, blocks):
            digest.update(storage.read(path, offset, min(_BLOCK_BYTES, size - offset)))
    except OSError as error:
        raise SourceError(f"cannot read {path}", why=error.strerror or str(error)) from error
    return digest.hexdigest()


def _offsets(size: int, blocks: int) -> list[int]:
    if size <= blocks * _BLOCK_BYTES:
        return list(range(0, size, _BLOCK_BYTES))
    last = size - _BLOCK_BYTES
    return [last * position // (blocks - 1) for position in range(blocks)] if blocks > 1 else [last]
