"""Outputs taken apart: one leaf per array, each with its name and the rows that it has."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from interlock._core._protocols import DeviceArray, Export, Pieces
from interlock._core._tree import flatten
from interlock.devices import open_device
from interlock.drain._blocks import rows_of
from interlock.drain._schema import ID_COLUMN, Column, Limits, check_dtype
from interlock.errors import DeviceError, UsageError
from interlock.frameworks import device_array_of, framework_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock._core._protocols import Framework

Taken: TypeAlias = Export | DeviceArray | Pieces
"""The value of a leaf: on the host, or on a device."""

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
        value: The array, a framework's, a `DeviceArray` or `Pieces`.
        framework: Who holds it; None for a value on a device.
        rows: Length of its first axis.
        row_bytes: Bytes of one row.
        origin: The framework and its array that `value` was found in, if it was.
    """

    name: str
    value: Any
    framework: Framework | None
    rows: int
    row_bytes: int
    origin: tuple[Framework, Any] | None = None

    @property
    def given(self) -> tuple[Framework | None, Any]:
        """The framework and its array, as they were put; no framework where a value on a device was put as such."""
        return self.origin or (self.framework, self.value)

    def found(self, *, borrow: bool) -> Leaf:
        """Return the leaf with the value that its array holds now, if that is on a device; else the leaf itself.

        Raises:
            UsageError: It cannot come to the host; the message names the leaf.
            DeviceError: There is no memory for the snapshot.
        """
        if self.framework is None:
            return self
        take: Callable[..., DeviceArray | Pieces | None] | None = getattr(self.framework, "device_arrays", None)
        with self._named():
            value: DeviceArray | Pieces | None = device_array_of(self.value)
            if value is None and take is not None:
                value = take(self.value, borrow=borrow, open_device=open_device)
        if value is None:
            return self
        return Leaf(self.name, value, None, self.rows, self.row_bytes, (self.framework, self.value))

    def take(self, start: int, stop: int, *, borrow: bool) -> Taken:
        """Take the value of rows `start` to `stop` as it is now, in its producer's order.

        Raises:
            UsageError: It cannot come to the host; the message names the leaf.
        """
        if isinstance(self.value, (DeviceArray, Pieces)):
            return rows_of(self.value, start, stop)
        assert self.framework is not None  # noqa: S101 - by construction: one of the two
        value = self.value if start == 0 and stop == self.rows else self.value[start:stop]
        with self._named():
            return self.framework.export(value, borrow=borrow)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Put the leaf's name before what is wrong with its array."""
        try:
            yield
        except (UsageError, DeviceError) as error:
            kind = UsageError if isinstance(error, UsageError) else DeviceError
            raise kind(f"output {self.name!r}: {error.what}", why=error.why, hint=error.hint) from error


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
    return [leaf_of(name, value, rows) for name, value in zip(names, values, strict=True)]


def leaf_of(name: str, value: Any, rows: int) -> Leaf:
    """Return a leaf.

    Raises:
        UsageError: `value` is no array, or its first axis is not `rows`.
    """
    on_device = isinstance(value, (DeviceArray, Pieces))
    framework = None if on_device else framework_of(value)
    if framework is None and not on_device:
        raise UsageError(
            f"output {name!r} is a {type(value).__module__}.{type(value).__qualname__}",
            why="that is no array of NumPy, PyTorch, JAX or CuPy",
            hint="convert it, as with numpy.asarray",
        )
    if isinstance(value, Pieces) and not all(piece.array.stable for piece in value.pieces):
        raise UsageError(f"output {name!r} is in parts that may change", hint="give stable parts only")
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
    itemsize = np.dtype(value.dtype).itemsize if on_device else value.dtype.itemsize
    return Leaf(name, value, framework, rows, math.prod(shape[1:]) * int(itemsize))


def column_of(name: str, taken: Taken, limits: Limits) -> Column:
    """Return the column that a taken leaf fills.

    Raises:
        UsageError: The sink does not store its dtype.
    """
    dtype = np.dtype(taken.dtype)
    check_dtype(name, dtype, limits)
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
