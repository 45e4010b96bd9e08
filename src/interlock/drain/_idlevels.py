"""Sorted arrays of numbers and of hashes of strings: what of a set of ids lies in no bitmap.

A string counts as four 32-bit hashes, each of them strongly universal and drawn when the process starts: two strings
that were chosen without knowing the draw have the same four with a chance of 2^-128. Nothing of them outlives the
process.

Source: the levels are those of a log-structured merge tree (O'Neil, Cheng, Gawlick, O'Neil 1996); the hash is
Multilinear (Lemire, Kaser, "Strongly universal string hashing is fast", 2014).
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from interlock.drain._ids import IdArray, Mask

Numbers = npt.NDArray[np.int64]

_SEED = secrets.randbits(128)
_BLOCK_CHARACTERS = 1 << 16
"""Hashed at once: so many fit into a cache."""


@final
class Levels:
    """Sorted arrays of numbers, each less than half as long as the one before; no number is in two.

    A number may have a tag; then the two together count, and of one number there are at most two.
    """

    def __init__(self) -> None:
        self._levels: list[Numbers] = []
        self._tags: list[Numbers] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(level.nbytes for level in self._levels + self._tags)

    def find(self, keys: Numbers, tags: Numbers | None = None) -> Mask:
        """Return which of `keys` are there, with the same tags. Quickest if they rise."""
        found = np.zeros(len(keys), np.bool_)
        for level, stored in zip(self._levels, self._tags or self._levels, strict=True):
            found |= _hits(level, keys, stored, tags)[0]
        return found

    def add(self, keys: Numbers, tags: Numbers | None = None) -> Numbers:
        """Add `keys`, rising, of which none is there; return the level that they are in now."""
        merged = 0
        for level in reversed(self._levels):
            if len(level) > 2 * len(keys):
                break
            merged += 1
            at = np.searchsorted(level, keys) + np.arange(len(keys))
            if tags is not None:
                tags = _merged(self._tags[-merged], tags, at)
            keys = _merged(level, keys, at)
        kept = len(self._levels) - merged
        self._levels[kept:] = [keys]
        if tags is not None:
            self._tags[kept:] = [tags]
        return keys

    def remove(self, keys: Numbers, tags: Numbers | None = None) -> int:
        """Take `keys`, each once, out; return how many were there."""
        removed = 0
        for number, level in enumerate(self._levels):
            found, at = _hits(level, keys, self._tags[number] if tags is not None else level, tags)
            removed += int(found.sum())
            self._levels[number] = np.delete(level, at[found])
            if tags is not None:
                self._tags[number] = np.delete(self._tags[number], at[found])
        return removed

    def take(self, first: Numbers, bits: int) -> list[Numbers]:
        """Take out what without its lowest `bits` is one of `first`, rising; return it, as rising arrays."""
        taken = []
        for number, level in enumerate(self._levels):
            of = level >> bits
            at = np.minimum(np.searchsorted(first, of), len(first) - 1)
            mask = first[at] == of
            if mask.any():
                taken.append(level[mask])
                self._levels[number] = level[~mask]
        return taken

    def between(self, first: int, last: int) -> list[Numbers]:
        """Return the keys from `first` to `last`, as rising arrays."""
        bounds = ((level, *np.searchsorted(level, [first, last + 1])) for level in self._levels)
        return [level[start:stop] for level, start, stop in bounds if stop > start]


def _merged(old: Numbers, new: Numbers, at: Numbers) -> Numbers:
    """Return `old` with `new` in between, which comes to lie at `at`."""
    both = np.empty(len(old) + len(new), np.int64)
    is_old = np.ones(len(both), np.bool_)
    is_old[at] = False
    both[is_old], both[at] = old, new
    return both


def _hits(level: Numbers, keys: Numbers, stored: Numbers, tags: Numbers | None) -> tuple[Mask, Numbers]:
    """Return which keys are in a level, and where; a key may be there twice, with other tags."""
    if not len(level):
        return np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.int64)
    first = np.searchsorted(level, keys)
    at = np.minimum(first, len(level) - 1)
    found = level[at] == keys
    if tags is None:
        return found, at
    same = found & (stored[at] == tags)
    second = np.minimum(first + 1, len(level) - 1)
    other = found & ~same & (level[second] == keys) & (stored[second] == tags)
    return same | other, np.where(other, second, at)


def hashes(texts: IdArray) -> tuple[Numbers, Numbers]:
    """Return the two halves of the hash of each string, which holds no NUL: so how long the array's type is adds 0."""
    count, length = texts.size, texts.dtype.itemsize // 4
    native = texts if texts.dtype.isnative else texts.astype(texts.dtype.newbyteorder("="))
    characters = np.ascontiguousarray(native).view(np.uint32).reshape(count, length)
    factors = _factors(1 << length.bit_length())
    sums = np.empty((count, 4), np.uint64)
    step = max(1, _BLOCK_CHARACTERS // length)
    for start in range(0, count, step):
        block = characters[start : start + step].astype(np.uint64)
        np.matmul(block, factors[1 : length + 1], out=sums[start : start + step])  # modulo 2^64
    sums += factors[0]
    halves = (sums >> np.uint64(32)).astype(np.uint32).view(np.int64)
    keys, tags = np.ascontiguousarray(halves.T)
    return keys, tags


@lru_cache(maxsize=4)
def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Return the first `count` of the process's random factors, shape (count, 4); of more, these are the first too."""
    drawn: npt.NDArray[Any] = np.random.Philox(key=_SEED).random_raw(4 * count)
    return drawn.reshape(count, 4)


def rising_hashes(texts: IdArray) -> tuple[Numbers, Numbers]:
    """Return the hashes of strings, rising, each once."""
    keys, tags = hashes(texts)
    order = np.argsort(keys)
    if (np.diff(keys[order]) == 0).any():
        order = np.lexsort((tags, keys))
    keys, tags = keys[order], tags[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (keys[1:] != keys[:-1]) | (tags[1:] != tags[:-1])
    return keys[is_new], tags[is_new]
