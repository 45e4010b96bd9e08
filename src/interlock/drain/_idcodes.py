"""How a manifest spells a set of ids.

A code of integers is `set1:` and, in base64, a head of 18 bytes and a body. Little-endian throughout.

| bytes | what |
| --- | --- |
| 1 | kind: `r` runs, `g` gaps, `b` bits |
| 1 | bytes of a number of the body: 1, 2, 4 or 8; with 128 added the body is deflated (zlib) |
| 8 | the first id, signed |
| 8 | numbers of the body, unsigned |

The body, of the kind that takes the fewest bytes:

- runs: for R runs of ids that follow each other, R lengths less one, then R - 1 times how many numbers lie between two
  of them, less one;
- gaps: the distances from each id to the next, less one;
- bits: one bit per number, set where it is an id, from the multiple of 8 on that is not above the first id; the lowest
  bit of a byte comes first.

A code says how long its body is before that is unpacked, and never more than 8 bytes for each row that its shard has:
so a damaged or a hostile one is refused before it takes memory. Ids that are strings have the code `str`: they are read
from the shard.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._ids import kind_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from interlock.drain._ids import IdArray

_PREFIX = "set1:"
_HEAD = struct.Struct("<cBqQ")
_DEFLATED = 0x80
_LEAST_DEFLATED_BYTES = 64
_MOST_BYTES_PER_ROW = 8
_SLACK_BYTES = 16
_WIDTHS = (1, 2, 4, 8)
_LARGEST = np.iinfo(np.int64).max


@final
@dataclass(frozen=True, slots=True)
class IdCode:
    """A set of integer ids, as a manifest spells it.

    Attributes:
        kind: `r`, `g` or `b`.
        first: The smallest id.
        last: The largest.
        rows: How many.
        body: Numbers as in the table above.
    """

    kind: str
    first: int
    last: int
    rows: int
    body: npt.NDArray[Any]

    def runs(self) -> tuple[IdArray, IdArray]:
        """Return first ids and lengths of the runs of a code of runs."""
        count = (len(self.body) + 1) // 2
        lengths = self.body[:count].astype(np.int64) + 1
        steps = np.empty(count, np.int64)
        steps[0] = self.first
        steps[1:] = lengths[:-1] + self.body[count:].astype(np.int64) + 1
        return np.cumsum(steps), lengths

    def ids(self) -> IdArray:
        """Return the ids, rising."""
        if self.kind == "b":
            return np.flatnonzero(np.unpackbits(self.body, bitorder="little")) + np.int64(self.first & ~7)
        if self.kind == "r":
            return spread(*self.runs())
        ids = np.empty(self.rows, np.int64)
        ids[0] = self.first
        np.add(self.body, 1, out=ids[1:], dtype=np.int64, casting="unsafe")
        return np.cumsum(ids, out=ids)


def spread(firsts: IdArray, lengths: IdArray) -> IdArray:
    """Return all ids of runs."""
    steps = np.ones(int(lengths.sum()), np.int64)
    ends = np.cumsum(lengths)
    steps[0] = firsts[0]
    steps[ends[:-1]] = firsts[1:] - (firsts[:-1] + lengths[:-1] - 1)
    return np.cumsum(steps, out=steps)


def encode_ids(ids: IdArray) -> str:
    """Return the code of a set of ids that has at least one."""
    if kind_of(ids) == "str":
        return "str"
    ordered = np.sort(ids)
    unsigned = ordered.view(np.uint64)
    distances = np.subtract(unsigned[1:], unsigned[:-1]) - np.uint64(1)  # of unsigned numbers none is too large
    breaks = np.flatnonzero(distances)
    lengths = np.diff(np.concatenate(([-1], breaks, [len(ordered) - 1]))) - 1
    runs = _narrow(np.concatenate((lengths.astype(np.uint64), distances[breaks] - np.uint64(1))))
    gaps = _narrow(distances)
    bits_bytes = (int(ordered[-1]) >> 3) - (int(ordered[0]) >> 3) + 1
    kind, body = ("r", runs) if runs.nbytes <= gaps.nbytes else ("g", gaps)
    if bits_bytes < body.nbytes:
        kind, body = "b", _bits(ordered, bits_bytes)
    return _PREFIX + base64.b64encode(_packed(kind, int(ordered[0]), body)).decode("ascii")


def _narrow(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    largest = int(numbers.max()) if numbers.size else 0
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    return numbers.astype(f"<u{width}")


def _bits(ordered: IdArray, size_bytes: int) -> npt.NDArray[np.uint8]:
    flags = np.zeros(8 * size_bytes, np.bool_)
    flags[ordered - (ordered[0] & ~7)] = True
    return np.packbits(flags, bitorder="little")


def _packed(kind: str, first: int, body: npt.NDArray[Any]) -> bytes:
    raw = body.tobytes()
    width, content = body.itemsize, raw
    if len(raw) >= _LEAST_DEFLATED_BYTES:
        deflated = zlib.compress(raw, 1)
        if len(deflated) < len(raw) // 2:  # else unpacking it takes longer than reading it
            width, content = width | _DEFLATED, deflated
    return _HEAD.pack(kind.encode(), width, first, len(body)) + content


def parse_code(code: str, rows: int) -> IdCode | None:
    """Return what `code` spells, or None if the ids are strings and so must be read from the shard.

    Args:
        code: As `encode_ids` makes it, or anything else.
        rows: How many ids it must spell; the caller knows that so many are not too many.

    Raises:
        UsageError: The code is damaged.
    """
    if code == "str":
        return None
    try:
        return _parse(code, rows)
    except (binascii.Error, zlib.error, struct.error, UnicodeEncodeError, ValueError, OverflowError) as error:
        raise UsageError("a code of ids cannot be read", why=str(error)) from error


def _parse(code: str, rows: int) -> IdCode:
    _require(code.startswith(_PREFIX), "it is of no kind that this version knows")
    content = base64.b64decode(code.removeprefix(_PREFIX).encode("ascii"), validate=True)
    kind, width, first, count = _HEAD.unpack_from(content)
    size_bytes = count * (width & ~_DEFLATED)
    _require(kind in {b"r", b"g", b"b"} and width & ~_DEFLATED in _WIDTHS, "its head is damaged")
    _require(size_bytes <= _MOST_BYTES_PER_ROW * rows + _SLACK_BYTES, f"it is too long for {rows} ids")
    raw = memoryview(content)[_HEAD.size :]
    if width & _DEFLATED:
        raw = memoryview(zlib.decompressobj().decompress(raw, size_bytes + 1))
    _require(len(raw) == size_bytes, "it is cut or too long")
    body = np.frombuffer(raw, f"<u{width & ~_DEFLATED}")
    found, span = _extent(kind.decode(), first, body)
    _require(found == rows, f"it does not spell {rows} ids")
    _require(first + span - 1 <= _LARGEST, "an id of it does not fit 64 bits")
    return IdCode(kind.decode(), first, first + span - 1, rows, body)


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise ValueError(what)


def _extent(kind: str, first: int, body: npt.NDArray[Any]) -> tuple[int, int]:
    """Return how many ids a body spells, and the distance from the first to the one behind the last."""
    if kind == "b":
        is_tight = body.itemsize == 1 and body.size > 0 and bool(body[0] >> (first & 7) & 1) and bool(body[-1])
        _require(is_tight and not body[0] & ((1 << (first & 7)) - 1), "its bits are damaged")
        return int(np.bitwise_count(body).sum()), 8 * (body.size - 1) + int(body[-1]).bit_length() - (first & 7)
    if kind == "g":
        return len(body) + 1, 1 + len(body) + _total(body)
    _require(len(body) % 2 == 1, "its runs are damaged")
    count = (len(body) + 1) // 2
    rows = _total(body[:count]) + count
    return rows, rows + _total(body[count:]) + count - 1


def _total(numbers: npt.NDArray[Any]) -> int:
    """Return the sum of numbers, however large it is."""
    if numbers.itemsize < 8:  # noqa: PLR2004 - of four bytes or less, there is no array of so many that it would overflow
        return int(numbers.sum(dtype=np.uint64))
    high, low = numbers >> (4 * numbers.itemsize), numbers & ((1 << (4 * numbers.itemsize)) - 1)
    return (int(high.sum(dtype=np.uint64)) << (4 * numbers.itemsize)) + int(low.sum(dtype=np.uint64))


def decode_ids(code: str, rows: int) -> IdArray | None:
    """Return the ids that `code` spells, rising, or None if they are strings and so must be read from the shard.

    Raises:
        UsageError: The code is damaged.
    """
    parsed = parse_code(code, rows)
    return None if parsed is None else parsed.ids()
