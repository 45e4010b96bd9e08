"""Sets of ids, of which a hundred million take megabytes.

Integers lie in pages of 65,536. A page that has many is a bitmap of 8 KiB; the ids of the others lie together in sorted
arrays. A string counts as its 128-bit BLAKE2b hash and takes 16 bytes: that two of a hundred million have the same is
less likely than one in 10^22.

Source: Roaring bitmaps (Chambi, Lemire, Kaser, Godin 2016) for the two kinds of pages; the levels are those of a
log-structured merge tree (O'Neil, Cheng, Gawlick, O'Neil 1996).
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from interlock.drain._idcodes import spread
from interlock.drain._ids import as_ids, is_rising, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.drain._idcodes import IdCode
    from interlock.drain._ids import IdArray, Mask

Bits: TypeAlias = npt.NDArray[np.uint8]
"""One bit per number, the lowest of a byte first."""

_PAGE_BITS = 16
_PAGE_IDS = 1 << _PAGE_BITS
_PAGE_BYTES = _PAGE_IDS >> 3
_DENSE_IDS = _PAGE_BYTES >> 3
"""Ids of 8 bytes that take as much as a bitmap."""

_ONE_BIT = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8))
_LOWEST_BITS = np.array([(1 << count) - 1 for count in range(8)], np.uint8)


@final
class _Pages:
    """Bitmaps, found by the number of their page."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._bits: npt.NDArray[np.uint8] = np.zeros((0, _PAGE_BYTES), np.uint8)

    def __len__(self) -> int:
        return len(self._keys)

    def places(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return where the pages `keys` are, -1 where there is none."""
        if not len(self._keys):
            return np.full(keys.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._places[at], -1)

    def make(self, keys: npt.NDArray[np.int64]) -> None:
        """Make pages `keys`, rising, which are not there."""
        count = len(self._keys)
        if count + len(keys) > len(self._bits):
            larger = np.zeros((max(count + len(keys), 2 * count), _PAGE_BYTES), np.uint8)  # takes memory when written
            larger[:count] = self._bits[:count]
            self._bits = larger
        at = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, at, keys)
        self._places = np.insert(self._places, at, count + np.arange(len(keys)))

    def page(self, place: int) -> Bits:
        """Return the bits of a page."""
        bits: Bits = self._bits[place]
        return bits

    def test(self, places: npt.NDArray[np.int64], ids: IdArray) -> Mask:
        """Return which of `ids`, each in its place, are there."""
        found: Mask = (self._bits[places, (ids & 0xFFFF) >> 3] & _ONE_BIT[ids & 7]) != 0
        return found

    def add(self, places: npt.NDArray[np.int64], ids: IdArray) -> int:
        """Add `ids`, rising, each in its place; return how many were new."""
        where = places * _PAGE_BYTES + ((ids & 0xFFFF) >> 3)
        first = np.flatnonzero(np.concatenate(([True], where[1:] != where[:-1])))
        fresh = np.bitwise_or.reduceat(_ONE_BIT[ids & 7], first)
        flat, where = self._bits.reshape(-1), where[first]
        before = flat[where]
        flat[where] = before | fresh
        return int(np.bitwise_count(fresh & ~before).sum())

    def remove(self, places: npt.NDArray[np.int64], ids: IdArray) -> int:
        """Take `ids`, each once and in its place, out; return how many were there."""
        held = self.test(places, ids)
        places, ids = places[held], ids[held]
        np.bitwise_and.at(self._bits, (places, (ids & 0xFFFF) >> 3), ~_ONE_BIT[ids & 7])
        return len(ids)

    def between(self, first: int, last: int) -> Iterator[tuple[int, Bits]]:
        """Yield key and bits of the pages `first` to `last`."""
        start, stop = np.searchsorted(self._keys, [first, last + 1])
        for key, place in zip(self._keys[start:stop].tolist(), self._places[start:stop].tolist(), strict=True):
            yield key, self._bits[place]


@final
class _Levels:
    """Sorted arrays of numbers, each less than half as long as the one before; no number is in two."""

    def __init__(self) -> None:
        self._levels: list[npt.NDArray[np.int64]] = []
        self._tags: list[npt.NDArray[np.int64]] = []

    def find(self, keys: npt.NDArray[np.int64], tags: npt.NDArray[np.int64] | None = None) -> Mask:
        """Return which of `keys` are there, with the same tags."""
        found = np.zeros(len(keys), np.bool_)
        for level, stored in zip(self._levels, self._tags or self._levels, strict=True):
            found |= _hits(level, keys, stored, tags)[0]
        return found

    def add(self, keys: npt.NDArray[np.int64], tags: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Add `keys`, rising, of which none is there; return the level that they are in now."""
        self._levels.append(keys)
        if tags is not None:
            self._tags.append(tags)
        while len(self._levels) > 1 and len(self._levels[-2]) <= 2 * len(self._levels[-1]):
            merged = np.concatenate((self._levels[-2], self._levels[-1]))
            order = np.argsort(merged, kind="stable")  # of two sorted parts: that takes one pass
            if tags is not None:
                self._tags[-2:] = [np.concatenate(self._tags[-2:])[order]]
            self._levels[-2:] = [merged[order]]
        return self._levels[-1]

    def remove(self, keys: npt.NDArray[np.int64], tags: npt.NDArray[np.int64] | None = None) -> int:
        """Take `keys`, each once, out; return how many were there."""
        removed = 0
        for number, level in enumerate(self._levels):
            found, at = _hits(level, keys, self._tags[number] if tags is not None else level, tags)
            removed += int(found.sum())
            self._levels[number] = np.delete(level, at[found])
            if tags is not None:
                self._tags[number] = np.delete(self._tags[number], at[found])
        return removed

    def take_pages(self, pages: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Take the keys of `pages`, rising, out and return them, as rising arrays."""
        taken = []
        for number, level in enumerate(self._levels):
            of = level >> _PAGE_BITS
            at = np.minimum(np.searchsorted(pages, of), len(pages) - 1)
            mask = pages[at] == of
            if mask.any():
                taken.append(level[mask])
                self._levels[number] = level[~mask]
        return taken

    def between(self, first: int, last: int) -> list[npt.NDArray[np.int64]]:
        """Return the keys from `first` to `last`, as rising arrays."""
        bounds = ((level, *np.searchsorted(level, [first, last + 1])) for level in self._levels)
        return [level[start:stop] for level, start, stop in bounds if stop > start]


def _hits(
    level: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    stored: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int64] | None,
) -> tuple[Mask, npt.NDArray[np.int64]]:
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


def _hashes(texts: IdArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the two halves of the hash of each string."""
    digests = b"".join(blake2b(text.encode(), digest_size=16).digest() for text in texts.tolist())
    halves = np.frombuffer(digests, "<i8").reshape(-1, 2)
    return halves[:, 0].astype(np.int64), halves[:, 1].astype(np.int64)


@final
class IdSet:
    """A set of ids of one kind; may be used by several threads."""

    __slots__ = ("_count", "_lock", "_loose", "_pages", "_texts")

    def __init__(self) -> None:
        self._pages = _Pages()
        self._loose = _Levels()
        self._texts = _Levels()
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"IdSet({self._count} ids)"

    def __contains__(self, one: object) -> bool:
        if isinstance(one, (bool, np.bool_)) or not isinstance(one, (int, np.integer, str)):
            return False
        if not isinstance(one, str) and not -(2**63) <= int(one) < 2**63:
            return False
        return bool(self.contains_many(np.array([one]))[0])

    def contains_many(self, ids: IdArray) -> Mask:
        """Return which of `ids` are in the set."""
        with self._lock:
            if not self._count or not ids.size:
                return np.zeros(ids.size, np.bool_)
            if kind_of(ids) == "str":
                return self._texts.find(*_hashes(ids))
            places = self._pages.places(ids >> _PAGE_BITS)
            dense = places >= 0
            if dense.all():
                return self._pages.test(places, ids)
            found = self._loose.find(ids)
            found[dense] = self._pages.test(places[dense], ids[dense])
            return found

    def add_many(self, ids: IdArray) -> int:
        """Add `ids`; return how many of them were new."""
        with self._lock:
            if not ids.size:
                return 0
            if kind_of(ids) == "str":
                return self._add_texts(ids)
            return self._add_rising(ids if is_rising(ids) else np.unique(ids))

    def add_code(self, code: IdCode) -> int:
        """Add the ids that a code spells, without unpacking them where they lie close; return how many were new."""
        with self._lock:
            before = self._count
            if code.kind == "b":
                self._add_bits(code)
            elif code.kind == "g":
                self._add_rising(code.ids())
            else:
                self._add_runs(*code.runs())
            return self._count - before

    def discard_many(self, ids: IdArray) -> None:
        """Take `ids` out; those that are not in do no harm."""
        with self._lock:
            ids = np.unique(ids)
            if kind_of(ids) == "str":
                self._count -= self._texts.remove(*_hashes(ids))
                return
            places = self._pages.places(ids >> _PAGE_BITS)
            dense = places >= 0
            self._count -= self._pages.remove(places[dense], ids[dense]) + self._loose.remove(ids[~dense])

    def bits(self, first: int, count: int) -> Bits:
        """Return which of the ids from `first` on are in the set.

        Args:
            first: The first id, a multiple of 8.
            count: How many ids.
        """
        out = np.zeros(-(-count // 8), np.uint8)
        last = first + count - 1
        with self._lock:
            for key, page in self._pages.between(first >> _PAGE_BITS, last >> _PAGE_BITS):
                start = (key * _PAGE_IDS - first) >> 3
                inside = slice(max(0, start), min(len(out), start + _PAGE_BYTES))
                out[inside] = page[inside.start - start : inside.stop - start]
            for ids in self._loose.between(first, last):
                np.bitwise_or.at(out, (ids - first) >> 3, _ONE_BIT[(ids - first) & 7])
        if count % 8:
            out[-1] &= _LOWEST_BITS[count % 8]
        return out

    def _add_texts(self, texts: IdArray) -> int:
        keys, tags = _hashes(np.unique(texts))
        fresh = ~self._texts.find(keys, tags)
        if not fresh.any():
            return 0
        keys, tags = keys[fresh], tags[fresh]
        order = np.argsort(keys, kind="stable")
        self._texts.add(keys[order], tags[order])
        self._count += len(keys)
        return len(keys)

    def _add_rising(self, ids: IdArray) -> int:
        before = self._count
        keys = ids >> _PAGE_BITS
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        counts = np.diff(np.append(starts, len(ids)))
        self._make_dense(keys[starts[counts >= _DENSE_IDS]])
        places = np.repeat(self._pages.places(keys[starts]), counts)
        dense = places >= 0
        if dense.all():
            self._count += self._pages.add(places, ids)
            return self._count - before
        if dense.any():
            self._count += self._pages.add(places[dense], ids[dense])
            ids = ids[~dense]
        fresh = ids[~self._loose.find(ids)]
        if fresh.size:
            self._count += len(fresh)
            self._make_dense(_crowded(self._loose.add(fresh)))
        return self._count - before

    def _make_dense(self, keys: npt.NDArray[np.int64]) -> None:
        """Make bitmaps of pages, which may be ones already, and move their ids there."""
        keys = keys[self._pages.places(keys) < 0] if keys.size else keys
        if not keys.size:
            return
        self._pages.make(keys)
        for ids in self._loose.take_pages(keys):
            self._pages.add(self._pages.places(ids >> _PAGE_BITS), ids)

    def _add_runs(self, firsts: IdArray, lengths: IdArray) -> None:
        is_long = lengths >= _PAGE_IDS
        for first, length in zip(firsts[is_long].tolist(), lengths[is_long].tolist(), strict=True):
            self._add_run(first, first + length)
        if not is_long.all():
            self._add_rising(spread(firsts[~is_long], lengths[~is_long]))

    def _add_bits(self, code: IdCode) -> None:
        """Add a code of bits page by page; pages with few of them by number."""
        bits, start, at = code.body, code.first & ~7, 0
        while at < len(bits):
            offset = (start & 0xFFFF) >> 3
            part = bits[at : at + _PAGE_BYTES - offset]
            if int(np.bitwise_count(part).sum()) >= _DENSE_IDS:
                page = self._page_of(start)[offset : offset + len(part)]
                self._count += int(np.bitwise_count(part & ~page).sum())
                page |= part
            elif part.any():
                self._add_rising(start + np.flatnonzero(np.unpackbits(part, bitorder="little")))
            start, at = start + 8 * len(part), at + len(part)

    def _add_run(self, first: int, stop: int) -> None:
        """Add the ids from `first` to before `stop`, page by page."""
        while first < stop:
            end = min(stop, (first | 0xFFFF) + 1)
            page, low, high = self._page_of(first), first & 0xFFFF, ((end - 1) & 0xFFFF) + 1
            before = int(np.bitwise_count(page).sum())
            page[-(-low // 8) : high // 8] = 0xFF
            if low % 8:
                page[low // 8] |= ~_LOWEST_BITS[low % 8]
            if high % 8:
                page[high // 8] |= _LOWEST_BITS[high % 8]
            self._count += int(np.bitwise_count(page).sum()) - before
            first = end

    def _page_of(self, one: int) -> Bits:
        """Return the bits of the page of an id, which it has from now on."""
        key = np.array([one >> _PAGE_BITS], np.int64)
        self._make_dense(key)
        return self._pages.page(int(self._pages.places(key)[0]))


def _crowded(ids: IdArray) -> npt.NDArray[np.int64]:
    """Return the pages of which rising ids hold so many that a bitmap takes less."""
    keys = ids >> _PAGE_BITS
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    crowded: npt.NDArray[np.int64] = keys[starts[np.diff(np.append(starts, len(ids))) >= _DENSE_IDS]]
    return crowded


@final
class IdView:
    """A set of ids to look at.

    Args:
        ids: The set; the view follows it.
    """

    __slots__ = ("_ids",)

    def __init__(self, ids: IdSet) -> None:
        self._ids = ids

    @property
    def ids(self) -> IdSet:
        """The set itself, for the package."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, one: object) -> bool:
        return one in self._ids

    def __repr__(self) -> str:
        return f"IdView({len(self._ids)} ids)"

    def contains_many(self, ids: Any) -> Mask:
        """Return which of `ids` (a sequence or array of int or str) are in the set, as a bool array.

        Raises:
            UsageError: They are no ids.
        """
        return self._ids.contains_many(as_ids(ids))
