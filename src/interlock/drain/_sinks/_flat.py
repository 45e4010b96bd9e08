"""Ragged columns in formats that have arrays and no lists: `NAME.values`, and `NAME.offsets`, int64 and one longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._rows import RaggedRows
from interlock.drain._ragged import gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._rows import Rows


@final
class Flattened:
    """Makes arrays of columns, each to be appended to what one of that name was before.

    Attributes:
        ragged: Names of the ragged columns so far.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    @property
    def ragged(self) -> list[str]:
        return list(self._ends)

    def arrays(self, columns: Mapping[str, Rows]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of some rows."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, column in columns.items():
            if not isinstance(column, RaggedRows):
                arrays[name] = column
                continue
            end = self._ends.get(name)
            arrays[f"{name}.values"] = column.values
            arrays[f"{name}.offsets"] = column.offsets if end is None else column.offsets[1:] + end
            self._ends[name] = (end or 0) + len(column.values)
        return arrays

    def is_along_rows(self, name: str) -> bool:
        """Tell whether an array has one row per row."""
        stem, _, part = name.rpartition(".")
        return stem not in self._ends or part not in {"values", "offsets"}


def read_columns(
    names: Sequence[str],
    ragged: Collection[str],
    positions: npt.NDArray[np.int64],
    rows_of: Callable[[str], npt.NDArray[Any]],
    array_of: Callable[[str], Any],
) -> dict[str, Rows]:
    """Return the rows at `positions` of all columns.

    Args:
        names: Of the arrays.
        ragged: Which columns are.
        positions: Which rows.
        rows_of: Returns those rows of an array.
        array_of: Returns what an array is sliced from.

    Raises:
        ValueError: Offsets are not those of rows.
    """
    columns: dict[str, Rows] = {}
    for name in names:
        stem, _, part = name.rpartition(".")
        if stem not in ragged or part not in {"values", "offsets"}:
            columns[name] = rows_of(name)
        elif part == "values":
            offsets = np.asarray(array_of(f"{stem}.offsets")[:])
            columns[stem] = gathered(offsets, positions, array_of(name))
    return columns
