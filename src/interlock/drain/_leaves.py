"""An array of a put: its rows, and how to take the value that they have now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from interlock._core._protocols import DeviceArray, Export, Pieces
from interlock.devices import open_device
from interlock.drain._blocks import rows_of
from interlock.drain._schema import Column, Limits, check_dtype
from interlock.errors import DeviceError, UsageError
from interlock.frameworks import device_array_of, framework_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from interlock._core._protocols import Framework
    from interlock._core._rows import Rows

Taken: TypeAlias = Export | DeviceArray | Pieces
"""The value of a leaf: on the host, or on a device."""

Key: TypeAlias = tuple[str, str]
"""Which part of which output: `("logits", "")`, `("hidden", "values")`, `("hidden", "told")`."""

Reader: TypeAlias = "Callable[[], npt.NDArray[Any]]"
"""Returns an array that has landed."""

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

    @property
    def payload_bytes(self) -> int:
        """Bytes of its rows."""
        return self.row_bytes * self.rows

    def found(self, *, borrow: bool) -> Leaf:
        """Return the leaf with the value that its array holds now, if that is on a device; else the leaf itself.

        Raises:
            UsageError: It cannot come to the host; the message names the leaf.
            DeviceError: There is no memory for the snapshot.
        """
        if self.framework is None:
            return self
        take: Callable[..., DeviceArray | Pieces | None] | None = getattr(self.framework, "device_arrays", None)
        try:
            value: DeviceArray | Pieces | None = device_array_of(self.value)
            if value is None and take is not None:
                value = take(self.value, borrow=borrow, open_device=open_device)
        except (UsageError, DeviceError) as error:
            raise self._named(error) from error
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
        try:
            return self.framework.export(value, borrow=borrow)
        except (UsageError, DeviceError) as error:
            raise self._named(error) from error

    def parts(self, start: int, stop: int) -> tuple[Part, ...]:
        """Return what is to be taken of rows `start` to `stop`: the one array."""
        return (Part((self.name, ""), self, start, stop),)

    def column(self, taken: Mapping[Key, Taken], limits: Limits) -> Column:
        """Return the column that its taken parts fill.

        Raises:
            UsageError: The sink does not store its dtype.
        """
        one = taken[self.name, ""]
        return Column(self.name, check_dtype(self.name, np.dtype(one.dtype), limits), tuple(one.shape[1:]))

    def reader(self, readers: Mapping[Key, Reader], start: int, stop: int) -> Callable[[], Rows]:  # noqa: ARG002
        """Return what returns its rows `start` to `stop`, from the readers of its parts."""
        return readers[self.name, ""]

    def size_bytes(self, start: int, stop: int) -> int:
        """Return the bytes that rows `start` to `stop` take in slots."""
        return aligned(self.row_bytes * (stop - start))

    def row_sizes(self) -> int:
        """Return the bytes of a row in slots."""
        return self.row_bytes

    def settled(self, read: Callable[[Leaf], npt.NDArray[Any]]) -> Leaf:  # noqa: ARG002
        """Return a leaf whose rows are known on the host to end where they end: this one."""
        return self

    def _named(self, error: UsageError | DeviceError) -> UsageError | DeviceError:
        """Return what is wrong with its array, with the leaf's name before it."""
        kind = UsageError if isinstance(error, UsageError) else DeviceError
        return kind(f"output {self.name!r}: {error.what}", why=error.why, hint=error.hint)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an array that a leaf consists of.

    Attributes:
        key: Which.
        leaf: The array.
        start: First row, of that array.
        stop: Row behind the last.
        is_new: Whether the leaf was made for this: its value is still to be found.
        is_own: Whether nobody else holds the array, so that it needs no snapshot.
        is_told: Whether it tells where rows are, and holds none of their values.
    """

    key: Key
    leaf: Leaf
    start: int
    stop: int
    is_new: bool = False
    is_own: bool = False
    is_told: bool = False

    def take(self, *, borrow: bool) -> Taken:
        """As in `Leaf`."""
        borrow = borrow or self.is_own
        leaf = self.leaf.found(borrow=borrow) if self.is_new else self.leaf
        return leaf.take(self.start, self.stop, borrow=borrow)


def leaf_of(name: str, value: Any, rows: int) -> Leaf:
    """Return a leaf.

    Raises:
        UsageError: `value` is no array, or its first axis is not `rows`.
    """
    leaf = array_of(name, value)
    shape = tuple(value.shape)
    if leaf.rows != rows:
        raise UsageError(
            f"output {name!r} has {leaf.rows} rows, and there are {rows} ids",
            why=f"its shape is {shape}",
            hint="the first axis is rows: one per id; see interlock.drain.Ragged for rows that differ in length",
        )
    refuse_empty(name, shape[1:])
    return leaf


def array_of(name: str, value: Any) -> Leaf:
    """Return an array with a first axis, of whatever length.

    Raises:
        UsageError: `value` is no array, or has no axis.
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
    itemsize = np.dtype(value.dtype).itemsize if on_device else value.dtype.itemsize
    return Leaf(name, value, framework, shape[0], math.prod(shape[1:]) * int(itemsize))


def refuse_empty(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows that hold nothing.

    Raises:
        UsageError: One of the axes has no length.
    """
    if 0 in shape:
        raise UsageError(f"output {name!r} has rows of shape {shape}", why="they hold nothing", hint="leave it out")


def empty_of(one: Taken) -> Reader:
    """Return the reader of what has no bytes, and so needs no slot."""
    return partial(np.empty, tuple(one.shape), np.dtype(one.dtype).newbyteorder("="))
