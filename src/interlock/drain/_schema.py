"""What the rows of a sink look like: names, dtypes, row shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from interlock.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

ID_COLUMN = "id"


@dataclass(frozen=True, slots=True)
class Column:
    """One output.

    Attributes:
        name: Dotted name of the leaf, as `logits` or `pair.0`.
        dtype: NumPy's name of its element type.
        shape: Shape of one row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Any) -> Column:
        """Undo `as_json`; raises KeyError, TypeError or ValueError on anything else."""
        return cls(str(value["name"]), str(value["dtype"]), tuple(int(one) for one in value["shape"]))


Schema: TypeAlias = tuple[Column, ...]


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse element types that sinks do not store.

    Raises:
        UsageError: `dtype` is none of bool, integers, unsigned integers, float16, float32, float64.
    """
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):  # noqa: PLR2004 - bytes of a double
        return
    hints = {
        "c": "put its real and imaginary parts as two outputs",
        "O": "stack the rows into one numeric array first",
        "U": "put numbers, and use strings as ids",
        "S": "put numbers, and use strings as ids",
        "M": "put .astype('int64')",
        "m": "put .astype('int64')",
    }
    raise UsageError(
        f"output {name!r} has the dtype {dtype}",
        why="sinks store bool, integers and float16 to float64",
        hint=hints.get(dtype.kind, "cast it first, as with .float() or .astype('float32')"),
    )


def check_same(stored: Schema, given: Schema) -> None:
    """Refuse rows that differ from those before.

    Raises:
        UsageError: Names, a dtype or a row shape differ; the message names the first such output and both values.
    """
    before = {column.name: column for column in stored}
    names = [column.name for column in given]
    if set(before) != set(names):
        raise UsageError(
            f"the outputs are {', '.join(sorted(names))}",
            why=f"the rows before have {', '.join(sorted(before))}",
            hint="put the same outputs every time, or use another sink",
        )
    for column in given:
        _check_column(before[column.name], column)


def _check_column(before: Column, column: Column) -> None:
    if before.shape != column.shape:
        raise UsageError(
            f"output {column.name!r} has rows of shape {column.shape}",
            why=f"the rows before have {before.shape}",
            hint="pad the rows to one shape, or use another sink",
        )
    if before.dtype != column.dtype:
        raise UsageError(
            f"output {column.name!r} has the dtype {column.dtype}",
            why=f"the rows before have {before.dtype}",
            hint="cast it to one dtype, or use another sink",
        )
