"""Row ids: the one kind of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

IdKind: TypeAlias = Literal["int", "str"]
IdArray: TypeAlias = npt.NDArray[Any]
"""int64 or Unicode, shape (rows,)."""

Mask: TypeAlias = npt.NDArray[np.bool_]

_HINT = "ids are int or str, one per row"
_BLOCK_CHARACTERS = 1 << 16
_MIN, _MAX = -(2**63), 2**63 - 1
_SURROGATES = 0xD800
_SURROGATE_MASK = 0xFFFFF800


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
    if isinstance(ids, range) and ids and min(ids[0], ids[-1]) >= _MIN and max(ids[0], ids[-1]) <= _MAX:
        return np.arange(ids.start, ids.stop, ids.step, dtype=np.int64)  # NumPy would take it number by number
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
    if kind == "U":
        texts = np.array(array, array.dtype.newbyteorder("="))
        if texts.size:
            _check_characters(texts)
        return texts
    if kind in "OT":
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


def _check_characters(texts: IdArray) -> None:
    """As `_check_text`, of an array of our own, without making strings of it."""
    length = texts.dtype.itemsize // 4
    characters = texts.view(np.uint32).reshape(texts.size, length)
    step = max(1, _BLOCK_CHARACTERS // length)
    for start in range(0, texts.size, step):
        block = characters[start : start + step]
        is_inner_nul = (block[:, :-1] == 0) & (block[:, 1:] != 0)
        if is_inner_nul.any() or ((block & _SURROGATE_MASK) == _SURROGATES).any():
            _check_text(texts[start : start + step].tolist())


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
    if ids.dtype.kind != "U" and is_rising(ids):
        return np.ones(ids.size, np.bool_)
    first = np.zeros(ids.size, np.bool_)
    first[np.unique(ids, return_index=True)[1]] = True
    return first


def is_rising(numbers: npt.NDArray[Any]) -> bool:
    """Tell whether each number is larger than the one before, as ids mostly are: so they need not be sorted."""
    return numbers.size < 2 or bool((numbers[1:] > numbers[:-1]).all())  # noqa: PLR2004 - a pair
