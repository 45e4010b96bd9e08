"""Sets of ids, of which a hundred million take megabytes.

Integers lie in pages of 65,536. A page that has many is a bitmap of 8 KiB, and so are, while that takes little, pages
in a row that have some; the ids of the others lie together in sorted arrays. A string counts as its 128-bit hash and
takes 16 bytes: that two of a hundred million have the same is less likely than one in 10^22.

Source: Roaring bitmaps (Chambi, Lemire, Kaser, Godin 2016) for the two kinds of pages.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from interlock.drain._idcodes import spread
from interlock.drain._idlevels import Levels, hashes, rising_hashes
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

_FREE_PAGES = 2048
_FEW_IDS = 8
"""Pages in a row that have so many ids each, on average, are bitmaps while all bitmaps take no more than 16 MiB: so ids
are found and added quickly, most of all if the bitmaps lie in their order."""

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
            larger[:count] = self._bits[self._places]
            self._bits, self._places = larger, np.arange(count)
        at = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, at, keys)
        self._places = np.insert(self._places, at, count + np.arange(len(keys)))

    def page(self, place: int) -> Bits:
        """Return the bits of a page."""
        bits: Bits = self._bits[place]
        return bits

    def find(self, keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Mask]:
        """Return the shifts of the pages `keys`, and which are there.

        A page's shift is how many bytes behind (or before) id // 8 its bits lie.
        """
        places = self.places(keys)
        return (places - keys) * _PAGE_BYTES, places >= 0

    def shift(self, first: int, last: int) -> int | None:
        """Return the shift of the pages `first` to `last` if all are there and it is the same, as it mostly is."""
        count = last - first + 1
        start = self._start(first)
        keys, places = self._keys[start : start + count], self._places[start : start + count]
        if len(keys) != count or keys[0] != first or keys[-1] != last:
            return None
        return (int(places[0]) - first) * _PAGE_BYTES if (places[1:] - places[:-1] == 1).all() else None

    def _start(self, key: int) -> int:
        """Return where `key` is among the keys, or would be. Pages mostly follow each other, which needs no search."""
        guess = key - int(self._keys[0]) if len(self._keys) else 0
        if 0 <= guess < len(self._keys) and self._keys[guess] == key:
            return guess
        return int(np.searchsorted(self._keys, key))

    def test(self, shifts: npt.NDArray[np.int64] | int, ids: IdArray) -> Mask:
        """Return which of `ids` are there; all have a page."""
        where, bits = _bit_of(shifts, ids)
        found: Mask = (self._bits.reshape(-1)[where] & bits) != 0
        return found

    def add_run(self, shift: int, first: int, last: int) -> int | None:
        """Add the ids `first` to `last`, which have pages of one shift and lie on more than one byte.

        Returns:
            How many there are; None, and nothing was added, if some of them were there.
        """
        flat = self._bits.reshape(-1)
        start, stop = (first >> 3) + shift, (last >> 3) + shift
        low, high = 0xFF << (first & 7) & 0xFF, 0xFF >> (7 - (last & 7))
        if flat[start] & low or flat[stop] & high or flat[start + 1 : stop].any():
            return None
        flat[start] |= low
        flat[start + 1 : stop] = 0xFF
        flat[stop] |= high
        return last - first + 1

    def add(self, shifts: npt.NDArray[np.int64] | int, ids: IdArray) -> int:
        """Add `ids`, each once and with a page; return how many were new."""
        where, bits = _bit_of(shifts, ids)
        flat = self._bits.reshape(-1)
        held = flat[where] & bits
        if held.any():
            where, bits = where[held == 0], bits[held == 0]
        np.add.at(flat, where, bits)  # each bit once, and not set: so that is `or`, which NumPy does ten times slower
        return len(bits)

    def remove(self, shifts: npt.NDArray[np.int64], ids: IdArray) -> int:
        """Take `ids`, each once and with a page, out; return how many were there."""
        where, bits = _bit_of(shifts, ids)
        flat = self._bits.reshape(-1)
        held = (flat[where] & bits) != 0
        np.subtract.at(flat, where[held], bits[held])
        return int(np.count_nonzero(held))

    def between(self, first: int, last: int) -> Iterator[tuple[int, Bits]]:
        """Yield key and bits of the pages `first` to `last`."""
        start, stop = np.searchsorted(self._keys, [first, last + 1])
        for key, place in zip(self._keys[start:stop].tolist(), self._places[start:stop].tolist(), strict=True):
            yield key, self._bits[place]


def _bit_of(shifts: npt.NDArray[np.int64] | int, ids: IdArray) -> tuple[npt.NDArray[np.int64], Bits]:
    """Return at which byte of all pages each id lies, and its bit there."""
    return (ids >> 3) + shifts, np.left_shift(np.uint8(1), ids.astype(np.uint8) & 7)


def _pages_of(ids: IdArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the pages that rising ids lie on, and how many of them lie on each."""
    keys = ids >> _PAGE_BITS
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.diff(starts, append=len(ids))


@final
class IdSet:
    """A set of ids of one kind; may be used by several threads."""

    __slots__ = ("_count", "_highest", "_lock", "_loose", "_pages", "_texts")

    def __init__(self) -> None:
        self._pages = _Pages()
        self._loose = Levels()
        self._texts = Levels()
        self._count = 0
        self._highest = -(2**63)
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
        if not self._count or not ids.size:
            return np.zeros(ids.size, np.bool_)
        if kind_of(ids) == "str":
            return self._find_texts(ids)
        lowest = int(ids.min())
        with self._lock:
            if lowest > self._highest:  # as in a job that goes through its ids in their order
                return np.zeros(ids.size, np.bool_)
            shift = self._pages.shift(lowest >> _PAGE_BITS, int(ids.max()) >> _PAGE_BITS)
            if shift is not None:
                return self._pages.test(shift, ids)
            shifts, dense = self._pages.find(ids >> _PAGE_BITS)
            found = self._loose.find(ids)
            found[dense] = self._pages.test(shifts[dense], ids[dense])
            return found

    def add_many(self, ids: IdArray) -> int:
        """Add `ids`; return how many of them were new."""
        if not ids.size:
            return 0
        if kind_of(ids) == "str":
            return self._add_texts(ids)
        with self._lock:
            ids = ids if is_rising(ids) else np.unique(ids)
            self._highest = max(self._highest, int(ids[-1]))
            return self._add_rising(ids)

    def add_code(self, code: IdCode) -> int:
        """Add the ids that a code spells, without unpacking them where they lie close; return how many were new."""
        with self._lock:
            before = self._count
            self._highest = max(self._highest, code.last)
            if code.kind == "b":
                self._add_bits(code)
            elif code.kind == "g":
                self._add_rising(code.ids())
            else:
                self._add_runs(*code.runs())
            return self._count - before

    def discard_many(self, ids: IdArray) -> None:
        """Take `ids` out; those that are not in do no harm."""
        if not ids.size:
            return
        with self._lock:
            if kind_of(ids) == "str":
                self._count -= self._texts.remove(*rising_hashes(ids))
                return
            ids = np.unique(ids)
            shifts, dense = self._pages.find(ids >> _PAGE_BITS)
            self._count -= self._pages.remove(shifts[dense], ids[dense]) + self._loose.remove(ids[~dense])

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

    def _find_texts(self, texts: IdArray) -> Mask:
        keys, tags = hashes(texts)
        if len(keys) == 1:
            with self._lock:
                return self._texts.find(keys, tags)
        order = np.argsort(keys)
        found = np.empty(len(keys), np.bool_)
        with self._lock:
            found[order] = self._texts.find(keys[order], tags[order])
        return found

    def _add_texts(self, texts: IdArray) -> int:
        keys, tags = rising_hashes(texts)
        with self._lock:
            fresh = ~self._texts.find(keys, tags)
            count = int(np.count_nonzero(fresh))
            if count:
                self._texts.add(keys[fresh], tags[fresh])
                self._count += count
        return count

    def _add_rising(self, ids: IdArray) -> int:
        before = self._count
        first, last = int(ids[0]), int(ids[-1])
        shift = self._pages.shift(first >> _PAGE_BITS, last >> _PAGE_BITS)
        if shift is not None:
            is_run = last - first == len(ids) - 1 and first >> 3 != last >> 3
            added = self._pages.add_run(shift, first, last) if is_run else None
            self._count += self._pages.add(shift, ids) if added is None else added
            return self._count - before
        keys, counts = _pages_of(ids)
        self._make_crowded(keys, counts)
        shifts, dense = self._pages.find(keys)
        mask = np.repeat(dense, counts)
        self._count += self._pages.add(np.repeat(shifts, counts)[mask], ids[mask])
        loose = ids[~mask]
        fresh = loose[~self._loose.find(loose)]
        if fresh.size:
            self._count += len(fresh)
            self._make_crowded(*_pages_of(self._loose.add(fresh)))
        return self._count - before

    def _make_crowded(self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Make bitmaps of pages of which enough ids are known."""
        span = int(keys[-1]) - int(keys[0]) + 1
        if _FEW_IDS * span <= int(counts.sum()) and len(self._pages) + span <= _FREE_PAGES:
            self._make_dense(np.arange(keys[0], keys[-1] + 1))
        else:
            self._make_dense(keys[counts >= _DENSE_IDS])

    def _make_dense(self, keys: npt.NDArray[np.int64]) -> None:
        """Make bitmaps of pages that have none, and move their ids there."""
        keys = keys[self._pages.places(keys) < 0]
        if not keys.size:
            return
        self._pages.make(keys)
        for ids in self._loose.take(keys, _PAGE_BITS):
            self._pages.add(self._pages.find(ids >> _PAGE_BITS)[0], ids)

    def _add_runs(self, firsts: IdArray, lengths: IdArray) -> None:
        is_long = lengths >= _DENSE_IDS
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


@final
class EitherIds:
    """Ids that are in one of two sets, for those who ask what is left.

    Args:
        one: A set.
        other: Another one.
    """

    def __init__(self, one: IdSet, other: IdSet) -> None:
        self._one, self._other = one, other

    def __contains__(self, one: object) -> bool:
        return one in self._one or one in self._other

    def contains_many(self, ids: IdArray) -> Mask:
        """As in `IdSet`."""
        return self._one.contains_many(ids) | self._other.contains_many(ids)

    def bits(self, first: int, count: int) -> Bits:
        """As in `IdSet`."""
        return self._one.bits(first, count) | self._other.bits(first, count)


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
