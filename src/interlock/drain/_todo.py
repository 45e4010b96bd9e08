"""What is left to do, one bit for each id that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._ids import as_ids, kind_of
from interlock.drain._layout import MOST_RANKS
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from interlock.drain._ids import IdArray
    from interlock.drain._idsets import Bits, EitherIds, IdSet

_BLOCK_BYTES = 64
"""Bits are counted in blocks, so that the k-th is found in one of them."""

_CHUNK_BYTES = 512
"""What is unpacked to find one of them."""

_YIELDED_BYTES = 1 << 13
_TEST_IDS = 1 << 18


@final
class Todo:
    """The ids that one rank has still to do, in their order. A sequence; also a sampler for a loader.

    It takes a bit for each of all ids (and, if they are no `range`, the array or, of strings, the list of them).

    Args:
        ids: All ids.
        bits: Which of them are left, by position.
    """

    def __init__(self, ids: range | IdArray | list[str], bits: Bits) -> None:
        self._ids = ids
        padded = np.zeros(-(-len(bits) // _BLOCK_BYTES) * _BLOCK_BYTES, np.uint8)
        padded[: len(bits)] = bits
        self._bits = padded
        counts = np.zeros(len(padded) // _BLOCK_BYTES + 1, np.int64)
        words = np.bitwise_count(padded.view(np.uint64)).reshape(-1, _BLOCK_BYTES // 8)
        np.cumsum(words.sum(axis=1, dtype=np.int64), out=counts[1:])
        self._before = counts
        self._chunk: tuple[int, npt.NDArray[np.int64]] = (0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return int(self._before[-1])

    def __repr__(self) -> str:
        return f"Todo({len(self)} of {len(self._ids)} ids)"

    def __iter__(self) -> Iterator[int | str]:
        for ids in self.blocks():
            yield from ids.tolist()

    def __getitem__(self, index: int) -> int | str:
        """Return the id at `index` of what is left."""
        one: int | str = self._at(np.array([self.position(index)])).tolist()[0]
        return one

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> IdArray:  # noqa: FBT001 - NumPy's protocol
        """Return all of them as one array, which takes 8 bytes for an integer."""
        if copy is False:
            raise ValueError("what is left is kept as bits, so an array of it is a copy")
        parts = list(self.blocks())
        ids = np.concatenate(parts or [self._at(np.empty(0, np.int64))])
        return ids if dtype is None else ids.astype(dtype)

    def blocks(self) -> Iterator[IdArray]:
        """Yield the ids as arrays of up to 65,536."""
        for positions in self.position_blocks():
            yield self._at(positions)

    def position_blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the positions in the sequence of all ids, as arrays of up to 65,536."""
        for start in range(0, len(self._bits), _YIELDED_BYTES):
            found = self._set_bits(start, _YIELDED_BYTES)
            if found.size:
                yield found

    def position(self, index: int) -> int:
        """Return where the id at `index` of what is left is in the sequence of all ids."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} ids, none at {index}")
        index %= len(self)
        first, chunk = self._chunk
        if not first <= index < first + len(chunk):  # mostly they are asked for in turn
            block = int(np.searchsorted(self._before, index, side="right")) - 1
            start = block * _BLOCK_BYTES // _CHUNK_BYTES * _CHUNK_BYTES
            first, chunk = int(self._before[start // _BLOCK_BYTES]), self._set_bits(start, _CHUNK_BYTES)
            self._chunk = first, chunk
        return int(chunk[index - first])

    def positions(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return `position` of each of `indices`, which are not negative."""
        return np.fromiter(map(self.position, indices.tolist()), np.int64, len(indices))

    def _set_bits(self, start: int, size_bytes: int) -> npt.NDArray[np.int64]:
        bits = np.unpackbits(self._bits[start : start + size_bytes], bitorder="little")
        return np.flatnonzero(bits) + 8 * start

    def _at(self, positions: npt.NDArray[np.int64]) -> IdArray:
        if isinstance(self._ids, range):
            return self._ids.start + positions * self._ids.step
        if isinstance(self._ids, list):
            return np.array([self._ids[position] for position in positions.tolist()], np.str_)
        return self._ids[positions]


def todo(ids: Any, committed: IdSet | EitherIds, rank: int, world: int) -> Todo:
    """Return what one of `world` ranks has to do of `ids`: every `world`-th from `rank` on that is not committed.

    Which ids are whose depends on nothing but their order: so ranks that saw more or less committed agree.

    Args:
        ids: A range, or a sequence or array of ids.
        committed: Ids that are done.
        rank: Whose; from 0 on.
        world: Number of ranks.

    Raises:
        UsageError: `ids` are no ids, or there is no such rank.
    """
    if isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], str):
        texts = list(ids)  # an array of them takes four bytes for each character of the longest
        return Todo(texts, _tested(len(texts), lambda rows: _as_texts(texts[rows]), committed, rank, world))
    known: range | IdArray = ids if isinstance(ids, range) else as_ids(ids)
    if isinstance(known, range):
        if known.step == 1 and known.start % 8 == 0:
            return Todo(known, _share(~committed.bits(known.start, len(known)), len(known), rank, world))
        return Todo(known, _tested(len(known), lambda rows: _numbers(known[rows]), committed, rank, world))
    return Todo(known, _tested(len(known), known.__getitem__, committed, rank, world))


def todo_rows(source: Any, committed: IdSet | EitherIds, rank: int, world: int) -> Todo:
    """Return which row numbers of a source that names its rows one of `world` ranks has to do; see `todo`.

    Args:
        source: It has `__len__` and `id_of`.
        committed: Ids that are done.
        rank: Whose; from 0 on.
        world: Number of ranks.
    """

    def names(rows: slice) -> IdArray:
        return as_ids([source.id_of(row) for row in range(rows.start, rows.stop)])

    return Todo(range(len(source)), _tested(len(source), names, committed, rank, world))


def check_rank(rank: int, world: int) -> None:
    """Refuse a rank that there cannot be.

    Raises:
        UsageError: It is none of 0 to `world` - 1, or there are more than names of files can tell apart.
    """
    if not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank!r} of {world!r}", hint="ranks are 0 to world - 1")
    if world > MOST_RANKS:
        raise UsageError(f"there are {world:,} ranks", hint=f"at most {MOST_RANKS:,} write to one sink")


def _as_texts(ids: list[str]) -> IdArray:
    texts = as_ids(ids)
    if kind_of(texts) != "str":
        raise UsageError("ids are partly strings and partly not", hint="use one kind for all rows of a sink")
    return texts


def _numbers(ids: range) -> IdArray:
    return np.arange(ids.start, ids.stop, ids.step, dtype=np.int64)


def _tested(count: int, ids: Callable[[slice], IdArray], committed: IdSet | EitherIds, rank: int, world: int) -> Bits:
    left = np.zeros(-(-count // 8), np.uint8)
    for start in range(0, count, _TEST_IDS):
        rows = slice(start, min(start + _TEST_IDS, count))
        packed = np.packbits(~committed.contains_many(ids(rows)), bitorder="little")
        left[start // 8 : start // 8 + len(packed)] = packed
    return _share(left, count, rank, world)


def _share(left: Bits, count: int, rank: int, world: int) -> Bits:
    """Take those of other ranks out of bits, and what is behind the last."""
    check_rank(rank, world)
    if count % 8:
        left[-1] &= (1 << count % 8) - 1
    if world > 1:
        left &= _every(world, rank, len(left))
    return left


def _every(world: int, rank: int, size_bytes: int) -> Bits:
    """Return bits of which every `world`-th is set, from `rank` on."""
    period = np.packbits(np.arange(8 * world) % world == rank, bitorder="little")
    return np.tile(period, -(-size_bytes // world))[:size_bytes]
