"""Rows that differ in their first dimension, on the host: how sinks get and return them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt


@final
@dataclass(frozen=True, slots=True, eq=False)
class RaggedRows:
    """Rows of any length, one behind the other, as Arrow's lists and the feed's `Offsets` have them.

    It has a length, and is sliced and iterated as an array is; each row is an array. `Drain.put` takes it too.

    Attributes:
        values: NumPy, shape (values of all rows, ...).
        offsets: int64, shape (rows + 1,): row `i` is `values[offsets[i]:offsets[i + 1]]`. From 0 to `len(values)`.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, which: int) -> npt.NDArray[Any]: ...

    @overload
    def __getitem__(self, which: slice) -> RaggedRows: ...

    def __getitem__(self, which: int | slice) -> npt.NDArray[Any] | RaggedRows:
        """Return one row, or the rows from one to another; no bytes move.

        Raises:
            IndexError: There is no such row.
            ValueError: The step is not 1.
        """
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                raise ValueError(f"ragged rows are sliced in steps of 1, and this one is {step}")
            offsets = self.offsets[start : max(start, stop) + 1]
            return RaggedRows(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        row = range(len(self))[which]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Values of each row, shape (rows,)."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """As that of an array; None for the axis that has another length in each row."""
        return (len(self), None, *self.values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the values, and eight for where each row begins."""
        return self.values.nbytes + 8 * len(self)


Rows: TypeAlias = "npt.NDArray[Any] | RaggedRows"
"""Rows of one output on the host: an array whose first axis they are, or ragged ones."""
