"""What the rows of a sink look like: names, dtypes, row shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, final

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from interlock._core._protocols import Sink

ID_COLUMN = "id"

NUMBERS = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    }
)
"""Element types that every sink stores."""

NARROW = frozenset({"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
"""Element types of `ml_dtypes` that some sinks store besides."""


IMAGINARY_HINT = "put its real and imaginary parts as two outputs"

_WIDER = {
    "uint8": ("int16", "int64"),
    "uint16": ("int32", "int64"),
    "uint32": ("int64",),
    "uint64": ("int64", "float64"),
    "float16": ("float32",),
}
"""What holds the values of an element type that some sink lacks; of uint64 only those below 2**63."""


@dataclass(frozen=True, slots=True)
class Column:
    """One output.

    Attributes:
        name: Dotted name of the leaf, as `logits` or `pair.0`.
        dtype: NumPy's name of its element type.
        shape: Shape of one row; its first axis is None where each row has another length.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def is_ragged(self) -> bool:
        """Whether rows differ in their first axis."""
        return None in self.shape

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Any) -> Column:
        """Undo `as_json`; raises KeyError, TypeError or ValueError on anything else."""
        shape = tuple(None if size is None else int(size) for size in value["shape"])
        return cls(str(value["name"]), str(value["dtype"]), shape)


Schema: TypeAlias = tuple[Column, ...]


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What a sink holds, asked before anything of a put is taken.

    Attributes:
        scheme: Which sink, for messages.
        dtypes: Element types besides `NUMBERS`.
        ragged: Whether rows may differ in their first axis.
        lacks: Element types of `NUMBERS` that it does not hold.
        check: Raises a `UsageError` on ids and names of outputs that cannot be stored; None if all can.
    """

    scheme: str = ""
    dtypes: frozenset[str] = NARROW
    ragged: bool = True
    lacks: frozenset[str] = frozenset()
    check: Callable[[npt.NDArray[Any], Sequence[str]], None] | None = None

    @classmethod
    def of(cls, sink: Sink) -> Limits:
        """Return what `sink` says, as in `SupportsLimits`; that of a sink that says nothing is all numbers."""
        nothing: frozenset[str] = frozenset()
        dtypes, lacks = getattr(sink, "dtypes", nothing), getattr(sink, "lacks", nothing)
        return cls(sink.scheme, dtypes, bool(getattr(sink, "ragged", False)), lacks, getattr(sink, "check", None))


def holds_nan(dtype: np.dtype[Any]) -> bool:
    """Tell whether a value of `dtype` can be NaN."""
    return dtype.kind == "f" or dtype.name in NARROW


@lru_cache(64)
def _stored_name(dtype: np.dtype[Any], limits: Limits) -> str | None:
    """Return the name of an element type, which NumPy makes anew each time; None if a sink does not store it."""
    return dtype.name if dtype.name in (NUMBERS | limits.dtypes) - limits.lacks else None


def check_dtype(name: str, dtype: np.dtype[Any], limits: Limits) -> str:
    """Return NumPy's name of an element type that a sink stores.

    Raises:
        UsageError: `dtype` is none of bool, integers, unsigned integers, float16, float32, float64, nor one that the
            sink stores besides; or one of those that it lacks.
    """
    stored = _stored_name(dtype, limits)
    if stored is not None:
        return stored
    hints = {
        "c": IMAGINARY_HINT,
        "O": "stack the rows into one numeric array first",
        "U": "put numbers, and use strings as ids",
        "S": "put numbers, and use strings as ids",
        "M": "put .astype('int64')",
        "m": "put .astype('int64')",
    }
    cast = "cast it first, as with .float() or .astype('float32')"
    hint = f"{cast}, or use safetensors:PATH, which keeps it" if dtype.name in NARROW else hints.get(dtype.kind, cast)
    wider = next((one for one in _WIDER.get(dtype.name, ()) if one not in limits.lacks), "")
    if dtype.name in limits.lacks and wider:
        hint = f"cast it, as with Drain(..., outputs={{{name!r}: interlock.drain.Cast({wider!r})}})"
    held = ", ".join(sorted(NUMBERS - limits.lacks)) if limits.lacks else "bool, integers and float16 to float64"
    raise UsageError(
        f"output {name!r} has the dtype {dtype}",
        why=f"{limits.scheme or 'such a sink'}{':' * bool(limits.scheme)} stores {held}",
        hint=hint,
    )


def check_same(stored: Schema, given: Schema) -> None:
    """Refuse rows that differ from those before.

    Raises:
        UsageError: Names, a dtype or a row shape differ; the message names the first such output and both values.
    """
    if stored == given:
        return
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
            f"output {column.name!r} has rows of shape {_shown(column.shape)}",
            why=f"the rows before have {_shown(before.shape)}",
            hint="put it as interlock.drain.Ragged, as before"
            if before.is_ragged and not column.is_ragged
            else "pad the rows to one shape, or use another sink",
        )
    if before.dtype != column.dtype:
        raise UsageError(
            f"output {column.name!r} has the dtype {column.dtype}",
            why=f"the rows before have {before.dtype}",
            hint="cast it to one dtype, or use another sink",
        )


def _shown(shape: tuple[int | None, ...]) -> str:
    """Return a shape as messages show it."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
