"""Outputs whose rows differ in their first dimension: how they are put, and what is done to them on the host."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final, overload

import numpy as np

from interlock._core._rows import RaggedRows
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._rows import Rows
    from interlock.drain._ids import IdArray


@final
@dataclass(slots=True, eq=False)
class Ragged:
    """An output whose rows differ in their first dimension, in one of the ways in which programs hold such.

    | | `values` | beside it |
    | --- | --- | --- |
    | padded | (rows, longest, ...) | `lengths`, (rows,) |
    | one behind the other | (values of all rows, ...) | `offsets`, (rows + 1,), or `lengths` with `flat=True` |
    | apart | a list of arrays of shape (length, ...), one per row | |

    A dict of `values` and `lengths`, or of `values` and `offsets`, is the same as the first and the second: so what a
    feed makes of its `Padded` and `Offsets` is put as it is. So is a jagged nested tensor of PyTorch, without this.

    Lengths may be 0. No padding is stored, nor what lies behind the last of the `offsets`.

    Args:
        values: An array of NumPy, PyTorch, JAX or CuPy, or a `DeviceArray`; or a list of arrays of one framework.
        lengths: Integers on the host or on a device: values of each row.
        offsets: As `lengths`: row `i` is `values[offsets[i]:offsets[i + 1]]`. The first is 0.
        flat: Whether `lengths` are those of rows that lie one behind the other.

    Copies: padded arrays are cut to the longest of their put before they leave their device, if the lengths are on the
        host; the rest of the padding crosses the link and is left out on the writer thread, in one more copy of the
        rows. A list is joined where it lies, in one copy; of JAX arrays each travels alone.

    Raises:
        UsageError: Both lengths and offsets are given, or one of them with a list, or neither with an array; or `flat`
            without lengths.
    """

    values: Any
    lengths: Any = None
    offsets: Any = None
    flat: bool = False

    def __post_init__(self) -> None:
        if self.lengths is not None and self.offsets is not None:
            raise UsageError("ragged values have both lengths and offsets", hint="give one of them")
        if self.flat and self.lengths is None:
            raise UsageError("flat=True is for values with lengths", hint="leave it out")
        is_list, has_ends = isinstance(self.values, (list, tuple)), self.lengths is not None or self.offsets is not None
        if is_list and has_ends:
            raise UsageError(
                f"ragged values in a list have {'lengths' if self.offsets is None else 'offsets'} besides",
                why="each array of a list is one row, whole",
                hint="leave padding out of it, as with array[:length], or stack them",
            )
        if not is_list and not has_ends:
            raise UsageError(
                f"ragged values of {type(self.values).__qualname__} have neither lengths nor offsets",
                hint="give one of them, or a list with an array for each row",
            )


def offsets_of(name: str, told: npt.NDArray[Any], *, is_offsets: bool, room: int, each: bool) -> npt.NDArray[np.int64]:
    """Return where each row begins among the values that belong to rows, from 0 to their number.

    Args:
        name: Of the output, for messages.
        told: Lengths or offsets.
        is_offsets: Which of them.
        room: Values that there are: of all rows, or of each where they are padded.
        each: Whether they are padded.

    Raises:
        UsageError: They do not fit the values.
    """
    ends = told.astype(np.int64)
    lengths = np.diff(ends) if is_offsets else ends
    if is_offsets and ends[0] != 0:
        raise UsageError(f"the offsets of output {name!r} begin with {ends[0]}", hint="the first row begins at 0")
    if (lengths < 0).any():
        row = int(np.flatnonzero(lengths < 0)[0])
        raise UsageError(
            f"row {row} of output {name!r} has {lengths[row]} values",
            why=f"its offsets are {ends[row]} and {ends[row + 1]}" if is_offsets else "so say its lengths",
            hint="offsets never fall" if is_offsets else "lengths are 0 or more",
        )
    if lengths.max(initial=0) > room:  # else no sum of them wraps
        row, there = int(lengths.argmax()), f"is room for {room}" if each else f"are {room}"
        raise UsageError(
            f"row {row} of output {name!r} has {lengths[row]} values, and there {there}",
            why=f"so say its {'offsets' if is_offsets else 'lengths'}",
            hint="no length can be more than the second axis of the values" if each else "",
        )
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if not each and (offsets[-1] > room or (offsets[-1] < room and not is_offsets)):
        raise UsageError(
            f"the rows of output {name!r} have {offsets[-1]:,} values, and there are {room:,}",
            why=f"so say its {'offsets' if is_offsets else 'lengths'}",
        )
    return offsets


def assembled(
    name: str,
    parts: Sequence[Callable[[], npt.NDArray[Any]]],
    told: Callable[[], npt.NDArray[Any]],
    *,
    is_offsets: bool,
    padded: bool,
) -> RaggedRows:
    """Return rows from what has landed.

    Args:
        name: Of the output, for messages.
        parts: Readers of the values: of all, or of some rows each, in order.
        told: Reader of lengths or offsets.
        is_offsets: Which of them.
        padded: Whether the values of each row are followed by padding.

    Raises:
        UsageError: The lengths or offsets do not fit the values.

    Copies: the rows, if they are padded or in several parts.
    """
    arrays = [read() for read in parts]
    values = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    room = values.shape[1] if padded else len(values)
    ends = offsets_of(name, told(), is_offsets=is_offsets, room=room, each=padded)
    if not padded:
        return RaggedRows(values[: ends[-1]], ends)
    lengths = np.diff(ends)
    if (lengths == room).all():
        return RaggedRows(values.reshape(-1, *values.shape[2:]), ends)
    kept = [row[:length] for row, length in zip(values, lengths.tolist(), strict=True)]
    return RaggedRows(np.concatenate(kept), ends)


@overload
def chosen(rows: RaggedRows, which: npt.NDArray[Any]) -> RaggedRows: ...


@overload
def chosen(rows: Rows, which: npt.NDArray[Any]) -> Rows: ...


def chosen(rows: Rows, which: npt.NDArray[Any]) -> Rows:
    """Return the rows at places, or those where a mask is true; a copy."""
    if not isinstance(rows, RaggedRows):
        return np.asarray(rows[which])
    places = np.flatnonzero(which) if which.dtype == np.bool_ else which
    lengths = rows.lengths[places]
    return RaggedRows(rows.values[_elements(rows.offsets[places], lengths)], np.concatenate(([0], np.cumsum(lengths))))


def ragged_of(arrays: Sequence[npt.NDArray[Any]]) -> RaggedRows:
    """Return rows that are in arrays of their own; there is at least one.

    Raises:
        ValueError: They differ in more than their first axis.
    """
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in arrays])))
    return RaggedRows(np.concatenate(arrays), offsets)


def _elements(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the place of each value of rows that begin at `starts`."""
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(lengths.sum()) + np.repeat(starts - before, lengths))


def gathered(offsets: npt.NDArray[np.int64], places: npt.NDArray[np.int64], values: Any) -> RaggedRows:
    """Return the rows at `places`; `values` is sliced, as an array on the storage. Neighbours are read together.

    Raises:
        ValueError: The offsets are not those of rows.
    """
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError("its offsets are not those of rows")
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    runs = pairwise([0, *cuts.tolist(), len(places)]) if len(places) else ()
    bounds = [(int(offsets[places[first]]), int(offsets[places[last - 1] + 1])) for first, last in runs]
    lengths = np.diff(offsets)[places]
    parts = [np.asarray(values[start:stop]) for start, stop in bounds or [(0, 0)]]
    return RaggedRows(np.concatenate(parts), np.concatenate(([0], np.cumsum(lengths))))


def rows_with_nan(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which rows hold a NaN."""
    values = rows.values if isinstance(rows, RaggedRows) else rows
    bad: npt.NDArray[np.bool_] = np.asarray(np.isnan(values).any(axis=tuple(range(1, values.ndim))))
    return any_of_each(rows, bad) if isinstance(rows, RaggedRows) else bad


def any_of_each(rows: RaggedRows, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which rows have a value whose flag is true."""
    before = np.concatenate(([0], np.cumsum(flags)))[rows.offsets]
    return np.asarray(np.diff(before) > 0)


def row_ends(ids: IdArray, columns: Mapping[str, Rows]) -> Sequence[int]:
    """Return the bytes of the rows before each, and of all as the last."""
    ragged = [column for column in columns.values() if isinstance(column, RaggedRows)]
    fixed = [column for column in columns.values() if not isinstance(column, RaggedRows)]
    row_bytes = ids.itemsize + 8 * len(ragged) + sum(column.nbytes // max(1, len(ids)) for column in fixed)
    ends = range(0, (len(ids) + 1) * row_bytes, row_bytes)
    if not ragged:
        return ends
    parts = [column.offsets * (column.values.nbytes // max(1, len(column.values))) for column in ragged]
    return [end + more for end, more in zip(ends, np.sum(parts, axis=0).tolist(), strict=True)]


def bytes_of(rows: Rows) -> memoryview:
    """Return the bytes of rows in C order and of this machine's byte order; of ragged ones, first where they begin.

    Copies: ragged ones.
    """
    if isinstance(rows, RaggedRows):
        return memoryview(rows.offsets.astype(np.int64).tobytes() + bytes_of(rows.values))
    native = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(-1).view(np.uint8).data
