"""Row ids: their one kind, sets of them, and how a manifest spells them."""

from __future__ import annotations

import base64
import binascii
import threading
import zlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IdKind: TypeAlias = Literal["int", "str"]
IdArray: TypeAlias = npt.NDArray[Any]
"""int64 or Unicode, shape (rows,)."""

Mask: TypeAlias = npt.NDArray[np.bool_]

_CHUNK_BITS = 16
_CHUNK_BYTES = 1 << (_CHUNK_BITS - 3)
_LOOSE_LIMIT = 64
"""A chunk with more ids than this becomes a bitmap; below, a set is smaller (ids that are hashes fill no chunk)."""

_HINT = "ids are int or str, one per row"


def as_ids(ids: Any) -> IdArray:
    """Return ids as an array of our own: int64, or Unicode.

    Args:
        ids: A sequence or array of int or str; an empty one counts as int.

    Copies: always, so that the caller may reuse its array.

    Raises:
        UsageError: The ids are neither, are mixed, do not fit 64 bits, or have another shape than (rows,).
    """
    if isinstance(ids, (str, bytes)) or not (hasattr(ids, "__len__") or hasattr(ids, "__array__")):
        raise UsageError(f"ids are one {type(ids).__name__}", why=_HINT, hint="pass a list or an array of them")
    if isinstance(ids, (list, tuple)):
        _check_elements(ids)
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError("ids cannot be read on the host", why=str(error), hint=_HINT) from error
    if array.ndim != 1:
        raise UsageError(f"ids have the shape {array.shape}", why=_HINT, hint="pass one axis")
    return _typed(array)


def _typed(array: npt.NDArray[Any]) -> IdArray:
    kind = array.dtype.kind
    if array.size == 0 and kind == "f":  # what NumPy makes of an empty list
        return np.empty(0, np.int64)
    if kind == "i":
        return np.array(array, np.int64)
    if kind == "u":
        if array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise UsageError(f"id {int(array.max())} does not fit a signed 64-bit integer", hint="use it as a string")
        return np.array(array, np.int64)
    if kind in "UT":
        _check_text(array.tolist())
        return np.array(array, np.str_)
    if kind == "O":
        elements = array.tolist()
        _check_elements(elements)
        if all(isinstance(one, (str, int, np.integer)) for one in elements):
            return _typed(np.array(elements)) if not _is_wide(elements) else _refuse_wide(elements)
    hint = "decode them first" if kind == "S" else _HINT
    raise UsageError(f"ids have the dtype {array.dtype}", why="that names no row for sure", hint=hint)


def _is_wide(elements: Sequence[Any]) -> bool:
    limits = np.iinfo(np.int64)
    return any(not isinstance(one, str) and not limits.min <= one <= limits.max for one in elements)


def _refuse_wide(elements: Sequence[Any]) -> IdArray:
    wide = next(one for one in elements if _is_wide([one]))
    raise UsageError(f"id {wide} does not fit a signed 64-bit integer", hint="use it as a string")


def _check_elements(elements: Sequence[Any]) -> None:
    types = {type(one) for one in elements}
    if any(issubclass(one, (bool, np.bool_, bytes)) for one in types):
        wrong = next(one for one in elements if isinstance(one, (bool, np.bool_, bytes)))
        raise UsageError(f"id {wrong!r} is a {type(wrong).__name__}", hint=_HINT)
    texts = [issubclass(one, str) for one in types]
    if any(texts):
        if not all(texts):
            raise UsageError("ids are partly strings and partly not", hint="use one kind for all rows of a sink")
        _check_text(elements)


def _check_text(texts: Sequence[str]) -> None:
    joined = "".join(texts)
    if "\0" in joined:
        wrong = next(one for one in texts if "\0" in one)
        raise UsageError(f"id {wrong!r} holds a NUL character", why="NumPy drops it at the end of a string")
    try:
        joined.encode()
    except UnicodeEncodeError:
        wrong = next(one for one in texts if not _encodes(one))
        raise UsageError(f"id {wrong!r} is not valid Unicode", hint="rename the file, or give ids yourself") from None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def kind_of(ids: IdArray) -> IdKind:
    """Return the kind of ids that an array of `as_ids` holds."""
    return "str" if ids.dtype.kind == "U" else "int"


def first_of_each(ids: IdArray) -> Mask:
    """Return which positions hold an id for the first time in `ids`."""
    if ids.dtype.kind != "U" and _is_rising(ids):
        return np.ones(ids.size, np.bool_)
    first = np.zeros(ids.size, np.bool_)
    first[np.unique(ids, return_index=True)[1]] = True
    return first


def _is_rising(numbers: npt.NDArray[Any]) -> bool:
    """Tell whether each number is larger than the one before, as ids mostly are: so they need not be sorted."""
    return numbers.size < 2 or bool((numbers[1:] > numbers[:-1]).all())  # noqa: PLR2004 - a pair


def encode_ids(ids: IdArray) -> str:
    """Return the code of a set of ids: for integers their sorted differences, packed.

    Strings have no code of their own: they are read from the shard.
    """
    if kind_of(ids) == "str":
        return "str"
    deltas = np.diff(np.sort(ids), prepend=np.int64(0)).astype("<i8")  # wraps, and so does the sum that undoes it
    return "int:" + base64.b64encode(zlib.compress(deltas.tobytes())).decode("ascii")


def decode_ids(code: str, rows: int) -> IdArray | None:
    """Return the ids that `code` spells, sorted, or None if they are strings and so must be read from the shard.

    Raises:
        UsageError: The code is damaged.
    """
    if code == "str":
        return None
    try:
        packed = base64.b64decode(code.removeprefix("int:").encode("ascii"), validate=True)
        raw = zlib.decompressobj().decompress(packed, 8 * rows + 1)
    except (binascii.Error, zlib.error, UnicodeEncodeError) as error:
        raise UsageError("a code of ids cannot be read", why=str(error)) from error
    if not code.startswith("int:") or len(raw) != 8 * rows:
        raise UsageError("a code of ids cannot be read", why=f"it does not spell {rows} ids")
    return np.cumsum(np.frombuffer(raw, "<i8"), dtype=np.int64)


@final
class IdSet:
    """A set of ids of one kind; may be used by several threads.

    Integers lie in chunks of 65,536: a bitmap of 8 KiB where they are dense, a small set where they are not.

    Source: Roaring bitmaps (Chambi, Lemire, Kaser, Godin 2016) for the chunks of two kinds.
    """

    __slots__ = ("_chunks", "_count", "_lock", "_texts")

    def __init__(self) -> None:
        self._chunks: dict[int, set[int] | npt.NDArray[np.uint8]] = {}
        self._texts: set[str] = set()
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"IdSet({self._count} ids)"

    def __contains__(self, one: object) -> bool:
        if isinstance(one, str):
            return one in self._texts
        if isinstance(one, (bool, np.bool_)) or not isinstance(one, (int, np.integer)):
            return False
        value = int(one)
        with self._lock:
            chunk = self._chunks.get(value >> _CHUNK_BITS)
            low = value & 0xFFFF
            if chunk is None or isinstance(chunk, set):
                return chunk is not None and low in chunk
            return bool(chunk[low >> 3] >> (low & 7) & 1)

    def contains_many(self, ids: IdArray) -> Mask:
        """Return which of `ids` are in the set."""
        with self._lock:
            if kind_of(ids) == "str":
                return np.fromiter((one in self._texts for one in ids.tolist()), np.bool_, ids.size)
            found = np.zeros(ids.size, np.bool_)
            for key, where in _by_chunk(ids):
                chunk = self._chunks.get(key)
                if chunk is not None:
                    found[where] = _test(chunk, ids[where] & 0xFFFF)
            return found

    def add_many(self, ids: IdArray) -> int:
        """Add `ids`; return how many of them were new."""
        with self._lock:
            before = self._count
            if kind_of(ids) == "str":
                self._texts.update(ids.tolist())
                self._count = len(self._texts)
            else:
                for key, where in _by_chunk(ids):
                    self._count += self._add(key, ids[where] & 0xFFFF)
            return self._count - before

    def discard_many(self, ids: IdArray) -> None:
        """Take `ids` out; those that are not in do no harm."""
        with self._lock:
            if kind_of(ids) == "str":
                self._texts.difference_update(ids.tolist())
                self._count = len(self._texts)
                return
            for key, where in _by_chunk(ids):
                chunk = self._chunks.get(key)
                if chunk is not None:
                    self._count -= _remove(chunk, np.unique(ids[where] & 0xFFFF))

    def _add(self, key: int, low: npt.NDArray[np.int64]) -> int:
        chunk = self._chunks.setdefault(key, set())
        if isinstance(chunk, set):
            before = len(chunk)
            if before + low.size <= _LOOSE_LIMIT:
                chunk.update(low.tolist())
                return len(chunk) - before
            chunk = self._chunks[key] = _bitmap(chunk)
        if not _is_rising(low):
            low = np.unique(low)
        fresh = low[~_test(chunk, low)]
        np.bitwise_or.at(chunk, fresh >> 3, _bits(fresh))
        return int(fresh.size)


@final
class IdView:
    """A set of ids to look at.

    Args:
        ids: The set; the view follows it.
    """

    __slots__ = ("_ids",)

    def __init__(self, ids: IdSet) -> None:
        self._ids = ids

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


def _by_chunk(ids: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Yield each chunk's key and the positions of its ids."""
    if not ids.size:
        return
    keys = ids >> _CHUNK_BITS
    if bool((keys == keys[0]).all()):
        yield int(keys[0]), slice(None)
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    for start, where in zip(starts.tolist(), np.split(order, starts[1:]), strict=True):
        yield int(ordered[start]), where


def _bits(low: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (low & 7).astype(np.uint8))


def _bitmap(loose: set[int]) -> npt.NDArray[np.uint8]:
    bitmap = np.zeros(_CHUNK_BYTES, np.uint8)
    low = np.fromiter(loose, np.int64, len(loose))
    np.bitwise_or.at(bitmap, low >> 3, _bits(low))
    return bitmap


def _test(chunk: set[int] | npt.NDArray[np.uint8], low: npt.NDArray[np.int64]) -> Mask:
    if isinstance(chunk, set):
        return np.fromiter((one in chunk for one in low.tolist()), np.bool_, low.size)
    found: Mask = (chunk[low >> 3] & _bits(low)) != 0
    return found


def _remove(chunk: set[int] | npt.NDArray[np.uint8], low: npt.NDArray[np.int64]) -> int:
    if isinstance(chunk, set):
        before = len(chunk)
        chunk.difference_update(low.tolist())
        return before - len(chunk)
    held = low[_test(chunk, low)]
    np.bitwise_and.at(chunk, held >> 3, ~_bits(held))
    return int(held.size)
