"""Arrow columns of numbers, of tensors, and of lists of numbers of one length or of any, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from interlock.errors import SourceError


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a sample.

    Attributes:
        name: Its name.
        shape: Of one row; of one element of its list where that has any length.
        dtype: Of the array.
        ragged: Whether its rows are lists of any length.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ragged: bool = False

    def __str__(self) -> str:
        rows = ", ".join(map(str, ("any", *self.shape) if self.ragged else self.shape))
        return f"{self.name}: {self.dtype}[{rows}]"


@dataclass(frozen=True, slots=True)
class Lists:
    """Rows of a column of lists of any length: a sequence of arrays.

    Attributes:
        values: The elements of all rows, one behind the other.
        starts: Where each row begins in them, and their number.
    """

    values: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, position: int) -> npt.NDArray[Any]:
        return self.values[self.starts[position] : self.starts[position + 1]]

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.starts.nbytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one column.

    Attributes:
        values: Shape (rows, ...), or lists; zeros in bad rows, or no element.
        bad: Position of each row that has no value, and why.
    """

    values: npt.NDArray[Any] | Lists
    bad: dict[int, str]


def holds_numbers(kind: Any) -> bool:
    """Tell whether a column of Arrow type `kind` holds numbers, or lists of them."""
    leaf = _leaf_type(kind)
    return bool(pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf))


def numpy_dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of the numbers in a column of Arrow type `kind`."""
    dtype: np.dtype[Any] = np.dtype(_leaf_type(kind).to_pandas_dtype())
    return dtype


def _leaf_type(kind: Any) -> Any:
    kind = kind.value_type if isinstance(kind, pa.FixedShapeTensorType) else kind
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _axes(kind: Any) -> list[int]:
    """Return where each axis of a tensor type lies in what is stored."""
    return list(kind.permutation or range(len(kind.shape)))


def has_fixed_shape(kind: Any) -> bool:
    """Tell whether the type alone says the shape of a row."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return not (pa.types.is_list(kind) or pa.types.is_large_list(kind))


def shape_of(kind: Any, first: Any = None) -> tuple[int, ...]:
    """Return the shape of a row.

    Args:
        kind: Arrow type of the column.
        first: Array whose first element is a row that is there; not needed where the type says it all.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape[axis] for axis in _axes(kind))
    shape: list[int] = []
    while True:
        if pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            shape.append(len(first[0]) if len(first) and first[0].is_valid else 0)
        else:
            return tuple(shape)
        first = first.flatten() if first is not None and len(first) else first
        kind = kind.value_type


def column_of_lists(label: str, field: Any) -> Column:
    """Return what a column is whose rows are lists of any length.

    Args:
        label: Where it is, for messages.
        field: Its Arrow field.

    Raises:
        SourceError: It has no lists, or lists of such lists.
    """
    kind = field.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise SourceError(
            f"column {field.name!r} of {label} is no list of any length",
            why=f"its type is {kind}",
            hint="leave it out of ragged",
        )
    if not has_fixed_shape(kind.value_type):
        raise SourceError(
            f"column {field.name!r} of {label} has lists of lists",
            why=f"its type is {kind}, and only the outer lists may have any length",
            hint="write the inner ones as lists of a fixed size",
        )
    return Column(field.name, shape_of(kind.value_type), numpy_dtype(kind), ragged=True)


def decode(array: Any, column: Column) -> Decoded:
    """Turn an Arrow array into rows.

    Args:
        array: The column's rows.
        column: What they should be.
    """
    if column.ragged:
        return _decode_lists(array, column)
    if isinstance(array.type, pa.FixedShapeTensorType):
        found = decode(array.storage, Column(column.name, (math.prod(column.shape),), column.dtype))
        assert not isinstance(found.values, Lists)  # noqa: S101 - as the column is not ragged
        stored = found.values.reshape(len(array), *array.type.shape)
        return Decoded(stored.transpose(0, *(axis + 1 for axis in _axes(array.type))), found.bad)
    if _is_plainly_whole(array):
        return Decoded(_dense(array, column), {})
    whole = _whole_rows(array, column.shape)
    if whole.all():
        return Decoded(_dense(array, column), {})
    values = np.zeros((len(array), *column.shape), column.dtype)
    values[whole] = _dense(array.filter(pa.array(whole)), column)
    return Decoded(values, {int(row): _reason(array[int(row)], column) for row in np.flatnonzero(~whole)})


def _decode_lists(array: Any, column: Column) -> Decoded:
    """Turn an array of lists into rows of any length."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    inside = decode(array.flatten(), Column(column.name, column.shape, column.dtype))
    assert not isinstance(inside.values, Lists)  # noqa: S101 - the column of elements is not ragged
    rows = np.searchsorted(starts, list(inside.bad), side="right") - 1
    bad = dict.fromkeys(rows.tolist(), f"column {column.name!r} has a null inside its list there")
    if array.null_count:
        missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
        bad |= dict.fromkeys(missing.tolist(), f"column {column.name!r} is null there")
    return Decoded(Lists(inside.values, starts), bad)


def _is_plainly_whole(array: Any) -> bool:
    """Tell whether type and counts alone say that no row is bad: then no value need be looked at."""
    while array.null_count == 0 and pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    kind = array.type
    return bool(array.null_count == 0 and not (pa.types.is_list(kind) or pa.types.is_large_list(kind)))


def _dense(array: Any, column: Column) -> npt.NDArray[Any]:
    rows = len(array)
    for _ in column.shape:
        array = array.flatten()
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(rows, *column.shape)


def _whole_rows(array: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Tell of each row whether it has no null at any depth and each list has its length."""
    whole = np.array(array.is_valid().to_numpy(zero_copy_only=False))
    if not shape:
        return whole
    whole &= pc.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False) == shape[0]
    inside = array.filter(pa.array(whole)).flatten()
    whole[whole] = _whole_rows(inside, shape[1:]).reshape(int(whole.sum()), shape[0]).all(axis=1)
    return whole


def _reason(value: Any, column: Column) -> str:
    if not value.is_valid:
        return f"column {column.name!r} is null there"
    if len(value) != column.shape[0]:
        return f"column {column.name!r} has a list of {len(value)} there, the first row one of {column.shape[0]}"
    return f"column {column.name!r} has a null or a list of another length inside its list there"
