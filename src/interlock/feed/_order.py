"""The order of an epoch: which sample is at a position, computed and not stored.

A shuffle is a keyed bijection of `range(length)`: any position gives its index at once, so an epoch starts in no time
whatever its length, and any rank can begin at any position. The same on every platform and with every NumPy: it is
made of integer arithmetic modulo 2**64.

Source:
    Feistel networks: Luby and Rackoff, How to construct pseudorandom permutations from pseudorandom functions, 1988.
    Cycle walking: Black and Rogaway, Ciphers with arbitrary finite domains, 2002. Constants of the round function:
    SplitMix64 in variant 13 of Stafford, as in Steele, Lea and Flood, Fast splittable pseudorandom number generators,
    2014. Keys: BLAKE2b.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final, overload

import numpy as np

from interlock._core._protocols import SupportsChunks
from interlock.errors import SourceError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from interlock.feed._state import Share

    _Indices = npt.NDArray[np.int64]

DEFAULT_WINDOW = 4
"""Chunks that are mixed. A source that keeps twice as many reads each chunk once."""
_ROUNDS = 8
_SMALL = 4096
"""Up to here a shuffle is a sorted table: a network of so few bits is not uniform enough."""
_BLOCK = 4096
_KEPT_BLOCKS = 8
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


class Order(Protocol):
    """A permutation of the indices of a source."""

    def __len__(self) -> int: ...

    def at(self, positions: _Indices) -> _Indices:
        """Return the indices at `positions`, each at least 0 and below the length. Shape and order are kept."""
        ...


@final
class Bijection:
    """A uniform shuffle of `range(length)`, in constant memory.

    Args:
        length: How many there are, below 2**62.
        key: What fixes the shuffle: two keys give independent ones.

    About 0.1 us an index where 4096 are asked for at once, as measured by `benchmarks/feed/resume.py`.
    """

    def __init__(self, length: int, key: tuple[int, ...]) -> None:
        self._length = length
        digest = hashlib.blake2b(repr((length, *key)).encode(), digest_size=8 * _ROUNDS, person=b"interlock.order1")
        self._keys = np.frombuffer(digest.digest(), dtype="<u8").astype(np.uint64)
        bits = max(2, (length - 1).bit_length())
        self._low_bits, self._high_bits = bits // 2, bits - bits // 2
        self._table = self._sorted() if length <= _SMALL else None

    def __len__(self) -> int:
        return self._length

    def at(self, positions: _Indices) -> _Indices:
        """As in `Order`."""
        if self._table is not None:
            return self._table[positions]
        values = self._encrypt(positions.astype(np.uint64))
        while len(outside := np.flatnonzero(values >= self._length)):  # fewer than half, and half as many each time
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Permute the numbers of the smallest power of two that holds the length."""
        left_bits, right_bits = self._high_bits, self._low_bits
        left = values >> np.uint64(right_bits)
        right = values & np.uint64((1 << right_bits) - 1)
        for key in self._keys:
            mixed = right ^ key
            mixed *= _MIX_1
            mixed ^= mixed >> _HALF
            mixed *= _MIX_2
            mixed >>= np.uint64(64 - left_bits)
            left, right = right, mixed ^ left
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right

    def _sorted(self) -> _Indices:
        """Order the numbers by a keyed hash of each."""
        mixed = np.arange(self._length, dtype=np.uint64)
        for key in self._keys:
            mixed = (mixed ^ key) * _MIX_1
            mixed = (mixed ^ (mixed >> _HALF)) * _MIX_2
            mixed ^= mixed >> _HALF
        return np.argsort(mixed, kind="stable").astype(np.int64)


@final
@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far a shuffle by chunks is from a uniform one; exact expectations over all seeds.

    Attributes:
        chunks: Chunks of the source.
        window: Chunks that are mixed.
        same_chunk: Chance that two samples of one window come from the same chunk.
        same_chunk_uniform: The same of any two samples.
        spread: How far apart the epoch takes two neighbours of a chunk, in parts of what a uniform shuffle does: 1 is
            uniform.
    """

    chunks: int
    window: int
    same_chunk: float
    same_chunk_uniform: float
    spread: float

    def __str__(self) -> str:
        return (
            f"{self.chunks} chunks in random order, {self.window} mixed at a time: two samples of a window are of one "
            f"chunk with chance {self.same_chunk:.2g} (uniform: {self.same_chunk_uniform:.2g}); neighbours end "
            f"{self.spread:.2g} times as far apart as in a uniform shuffle"
        )


@final
class ChunkShuffle:
    """Chunks in random order, and the samples of `window` chunks at a time mixed. Memory: a few numbers a chunk.

    Args:
        starts: Index of the first sample of each chunk, then the length.
        window: Chunks that are mixed.
        key: As in `Bijection`.
    """

    def __init__(self, starts: _Indices, window: int, key: tuple[int, ...]) -> None:
        sizes = np.diff(starts)
        count = len(sizes)
        turns = Bijection(count, (*key, -1)).at(np.arange(count))
        self._length = int(starts[-1])
        self._key = key
        self._window = window
        self._starts = starts[turns]
        self._sizes = sizes[turns]
        self._ends = np.cumsum(self._sizes)
        self._window_firsts = np.concatenate([[0], self._ends[window - 1 :: window]]).astype(np.int64)
        if self._window_firsts[-1] != self._length:
            self._window_firsts = np.append(self._window_firsts, self._length)
        self._mixes: dict[int, Bijection] = {}

    def __len__(self) -> int:
        return self._length

    def at(self, positions: _Indices) -> _Indices:
        """As in `Order`."""
        windows = np.searchsorted(self._window_firsts, positions, side="right") - 1
        places = np.empty_like(positions)
        for number in np.unique(windows).tolist():
            chosen = windows == number
            first = self._window_firsts[number]
            places[chosen] = first + self._mix(number).at(positions[chosen] - first)
        turns = np.searchsorted(self._ends, places, side="right")
        found: _Indices = self._starts[turns] + places - (self._ends[turns] - self._sizes[turns])
        return found

    def _mix(self, number: int) -> Bijection:
        found = self._mixes.get(number)
        if found is None:
            size = int(self._window_firsts[number + 1] - self._window_firsts[number])
            found = Bijection(size, (*self._key, number))
            recent = dict(itertools.islice(self._mixes.items(), max(0, len(self._mixes) - 3), None))
            self._mixes = {**recent, number: found}  # replaced whole: other threads look into it
        return found

    def quality(self) -> ShuffleQuality:
        """Compare with a uniform shuffle."""
        sizes = self._sizes.astype(np.float64)
        widths = np.diff(self._window_firsts).astype(np.float64)
        window_of = np.arange(len(sizes)) // self._window
        alike = sizes * (sizes - 1)
        mates = np.bincount(window_of, weights=alike)
        pairs = np.maximum(widths * (widths - 1), 1)
        neighbours = np.bincount(window_of, weights=sizes - 1)
        length = float(self._length)
        return ShuffleQuality(
            chunks=len(sizes),
            window=self._window,
            same_chunk=float((mates / pairs * widths).sum() / length),
            same_chunk_uniform=float(alike.sum() / max(length * (length - 1), 1)),
            spread=float((neighbours * (widths + 1)).sum() / max(neighbours.sum() * (length + 1), 1)),
        )


@final
@dataclass(frozen=True, slots=True)
class Shuffle:
    """What `Feed(shuffle=...)` asks for.

    Attributes:
        kind: `none`, `uniform` or `chunks`.
        window: Chunks that are mixed; 0 unless `chunks`.
    """

    kind: str
    window: int = 0

    def __str__(self) -> str:
        return f"chunks:{self.window}" if self.window else self.kind

    def order(self, length: int, edges: _Indices | None, key: tuple[int, int]) -> Order | None:
        """Return the order of an epoch; None for that of the source.

        Args:
            length: Of the source.
            edges: What `chunk_edges` returned, where chunks count.
            key: Seed and epoch.
        """
        if edges is not None:
            return ChunkShuffle(edges, self.window, key)
        return Bijection(length, key) if self.kind == "uniform" else None


def parse_shuffle(value: Any) -> Shuffle:
    """Return what an argument `shuffle` means.

    Raises:
        UsageError: It cannot be meant.
    """
    if isinstance(value, bool):
        return Shuffle("uniform" if value else "none")
    kind, colon, count = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "chunks" and (not colon or (count.isdecimal() and int(count) >= 1)):
        return Shuffle("chunks", int(count) if colon else DEFAULT_WINDOW)
    raise UsageError(f"shuffle is {value!r}", hint="use True, False, 'chunks' or, as in 'chunks:16', how many to mix")


def chunk_edges(source: Any) -> _Indices:
    """Return where the chunks of a source begin, and its length behind them.

    Raises:
        UsageError: It names no chunks.
        SourceError: They do not begin at 0, do not rise, or go beyond the length.
    """
    length = len(source)
    if not isinstance(source, SupportsChunks):
        raise UsageError(
            f"a {type(source).__name__} names no chunks",
            hint="use shuffle=True, or give the source a method chunk_starts()",
        )
    starts = np.asarray(source.chunk_starts(), dtype=np.int64)
    edges = np.append(starts, length)
    if edges[0] != 0 or (np.diff(edges) <= 0).any():
        if len(starts) <= 1 and length == 0:
            return np.zeros(1, dtype=np.int64)
        raise SourceError(
            f"the chunks of a {type(source).__name__} do not fit its {length} samples",
            hint="chunk_starts() gives the index of the first sample of each chunk: 0 first, and rising",
        )
    return edges


def digest_of(edges: _Indices) -> str:
    """Return a digest of where chunks begin: another layout gives another order."""
    return hashlib.blake2b(edges.astype("<i8").tobytes(), digest_size=16).hexdigest()


@final
class Indices:
    """The indices that one rank reads in an epoch, in turn: `share` says which positions of `order` are its own.

    Args:
        order: The epoch's; None for that of the source.
        share: The rank's part.

    A block of them is computed at once and kept. Safe on any number of threads.
    """

    def __init__(self, order: Order | None, share: Share) -> None:
        self._order = order
        self._share = share
        self._blocks: dict[int, _Indices] = {}

    def __len__(self) -> int:
        return len(self._share)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> range | _Indices: ...
    @overload
    def __getitem__(self, key: npt.NDArray[np.intp]) -> _Indices: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the index at one place, those of a slice or those at an array of places."""
        if isinstance(key, slice):
            start, stop, _ = key.indices(len(self))
            run = self._share.run(start, stop) if self._order is None else None
            return self._span(start, stop) if run is None else run
        if isinstance(key, np.ndarray):
            first, last = (int(key.min()), int(key.max())) if len(key) else (0, -1)
            return self._span(first, last + 1)[key - first]
        number, place = divmod(key, _BLOCK)
        return int(self._block(number)[place])

    def after(self, place: int, steps: int) -> int:
        """Return the index so many steps after `place` in the order of the epoch, whoever reads that; cyclic."""
        positions = (self._share.positions(np.array([place], dtype=np.int64)) + steps) % self._share.total
        return int((positions if self._order is None else self._order.at(positions))[0])

    def _span(self, start: int, stop: int) -> _Indices:
        """Return the indices at places `start` to before `stop`: out of blocks, since batches are small."""
        low, high = start // _BLOCK, -(-stop // _BLOCK)
        if high - low == 1:  # nearly always
            return self._block(low)[start - low * _BLOCK : stop - low * _BLOCK]
        if high - low > _KEPT_BLOCKS or start >= stop:
            return self._compute(np.arange(start, stop, dtype=np.int64))
        blocks = [self._block(number) for number in range(low, high)]
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return joined[start - low * _BLOCK : stop - low * _BLOCK]

    def _compute(self, places: _Indices) -> _Indices:
        positions = self._share.positions(places)
        return positions if self._order is None else self._order.at(positions)

    def _block(self, number: int) -> _Indices:
        found = self._blocks.get(number)
        if found is None:
            first = number * _BLOCK
            found = self._compute(np.arange(first, min(first + _BLOCK, len(self)), dtype=np.int64))
            recent = dict(list(self._blocks.items())[1 - _KEPT_BLOCKS :])
            self._blocks = {**recent, number: found}  # replaced whole: other threads look into it
        return found
