"""Outputs taken apart: one leaf per array, each with its name and the rows that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import DeviceArray, Export
from interlock._core._tree import flatten
from interlock.drain._schema import ID_COLUMN, Column, check_dtype
from interlock.errors import UsageError
from interlock.frameworks import device_array_of, framework_of

if TYPE_CHECKING:
    from interlock._core._protocols import Framework

LONE_NAME = "output"
"""Column name of an output that is one array."""

ALIGNMENT = 64


def aligned(size_bytes: int) -> int:
    """Return `size_bytes` rounded up, so that what lies behind is aligned for any dtype."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@final
@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a put.

    Attributes:
        name: Column name.
        value: The array, a framework's or a `DeviceArray`.
        framework: Who holds it; None for a `DeviceArray`.
        rows: Length of its first axis.
        row_bytes: Bytes of one row.
    """

    name: str
    value: Any
    framework: Framework | None
    rows: int
    row_bytes: int

    def take(self, start: int, stop: int, *, borrow: bool) -> Export | DeviceArray:
        """Take the value of rows `start` to `stop` as it is now, in its producer's order.

        Raises:
            UsageError: It cannot come to the host; the message names the leaf.
        """
        is_whole = start == 0 and stop == self.rows
        if isinstance(self.value, DeviceArray):
            return self.value if is_whole else self._part(self.value, start, stop)
        assert self.framework is not None  # noqa: S101 - by construction: one of the two
        value = self.value if is_whole else self.value[start:stop]
        try:
            return device_array_of(value) or self.framework.export(value, borrow=borrow)
        except UsageError as error:
            raise UsageError(f"output {self.name!r}: {error.what}", why=error.why, hint=error.hint) from error

    def _part(self, array: DeviceArray, start: int, stop: int) -> DeviceArray:
        memory = array.memory.slice(start * self.row_bytes, (stop - start) * self.row_bytes)
        return DeviceArray(array.device, memory, (stop - start, *array.shape[1:]), array.dtype, array.ready)


def leaves_of(outputs: Any, rows: int) -> list[Leaf]:
    """Return the leaves of `outputs`.

    Args:
        outputs: An array, or nested dicts and tuples of arrays.
        rows: Length that their first axes must have.

    Raises:
        UsageError: There is no leaf, or one is no array, has no rows or another number of them, or a name that is
            taken.
    """
    values, structure = flatten(outputs)
    names = [LONE_NAME] if structure.kind is None else structure.names()
    if not values:
        raise UsageError("the outputs hold no array", hint="put at least one per row")
    for name in names:
        if not name or name == ID_COLUMN:
            why = "the column of that name holds the ids" if name else "a column needs a name"
            raise UsageError(f"an output is called {name!r}", why=why, hint="rename it")
    return [_leaf(name, value, rows) for name, value in zip(names, values, strict=True)]


def _leaf(name: str, value: Any, rows: int) -> Leaf:
    framework = None if isinstance(value, DeviceArray) else framework_of(value)
    if framework is None and not isinstance(value, DeviceArray):
        raise UsageError(
            f"output {name!r} is a {type(value).__module__}.{type(value).__qualname__}",
            why="that is no array of NumPy, PyTorch or JAX",
            hint="convert it, as with numpy.asarray",
        )
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"output {name!r} is a masked array", hint="fill it first, as with .filled(0)")
    shape = tuple(getattr(value, "shape", ()))
    if not shape:
        raise UsageError(f"output {name!r} has no axis of rows", why="it is one number", hint="put one row per id")
    if shape[0] != rows:
        raise UsageError(
            f"output {name!r} has {shape[0]} rows, and there are {rows} ids",
            why=f"its shape is {shape}",
            hint="the first axis is rows: one per id",
        )
    if 0 in shape[1:]:
        raise UsageError(f"output {name!r} has rows of shape {shape[1:]}", why="they hold nothing", hint="leave it out")
    itemsize = np.dtype(value.dtype).itemsize if isinstance(value, DeviceArray) else value.dtype.itemsize
    return Leaf(name, value, framework, rows, math.prod(shape[1:]) * int(itemsize))


def column_of(name: str, taken: Export | DeviceArray) -> Column:
    """Return the column that a taken leaf fills.

    Raises:
        UsageError: Sinks do not store its dtype.
    """
    dtype = np.dtype(taken.dtype)
    check_dtype(name, dtype)
    return Column(name, dtype.name, tuple(taken.shape[1:]))


def chunk_bytes(leaves: list[Leaf], rows: int) -> int:
    """Return the bytes that `rows` rows of all leaves take in slots."""
    return sum(aligned(leaf.row_bytes * rows) for leaf in leaves)


def rows_that_fit(leaves: list[Leaf], limit_bytes: int) -> int:
    """Return how many rows take at most `limit_bytes` in slots; maybe 0."""
    row_bytes = sum(leaf.row_bytes for leaf in leaves)
    slack = len(leaves) * (ALIGNMENT - 1)
    if chunk_bytes(leaves, 1) > limit_bytes:
        return 0
    return max(1, (limit_bytes - slack) // row_bytes)
