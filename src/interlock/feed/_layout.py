"""Where the leaves of a batch lie in its slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from interlock._core._handover import Leaf
from interlock._core._tree import LEAF, Structure, flatten
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock._core._protocols import Memory

ALIGNMENT_BYTES = 128
"""XLA uses host memory in place only from a 64-byte boundary on; 128 is two cache lines, as prefetchers fetch them."""

_NUMBER_KINDS = "biufcV"
"""Kinds of dtype with a fixed size and no pointers; V covers bfloat16 and its like, records are refused by name."""
_OPAQUE = np.dtype("V")


@dataclass(frozen=True, slots=True)
class Layout:
    """All arrays of a batch, packed into one slot so that they cross a link in one copy.

    Attributes:
        ragged: Whether samples may differ in their number of rows; see `RaggedLayout`.
        structure: How the leaves hang together.
        leaves: In leaf order.
        size_bytes: Bytes of a full batch, padding included; at least one.
        rows: Shape and dtype of one row of each leaf.
    """

    ragged: ClassVar[bool] = False
    structure: Structure
    leaves: tuple[Leaf, ...]
    size_bytes: int
    rows: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]

    @classmethod
    def pack(cls, structure: Structure, arrays: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]) -> Layout:
        """Lay out arrays given as (name, full shape, dtype) one behind the other."""
        leaves: list[Leaf] = []
        offset = 0
        for name, shape, dtype in arrays:
            leaves.append(Leaf(name, shape, dtype, offset))
            size = math.prod(shape) * dtype.itemsize
            offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        rows = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        return cls(structure, tuple(leaves), max(offset, 1), rows)

    @classmethod
    def of_sample(cls, sample: Any, rows: int) -> Layout:
        """Lay out a batch of `rows` samples like this one.

        Raises:
            UsageError: The sample has no array, or one that is not made of numbers.
        """
        values, structure = flatten(sample)
        if not values:
            raise UsageError("a sample holds no array", hint="return an array, a number, or a dict or tuple of them")
        names = structure.names()
        arrays = [as_numbers(value, name) for value, name in zip(values, names, strict=True)]
        return cls.pack(
            structure,
            [(name, (rows, *array.shape), array.dtype) for name, array in zip(names, arrays, strict=True)],
        )

    @property
    def names(self) -> list[str]:
        """Names of the leaves of a sample."""
        return [leaf.name for leaf in self.leaves]

    def views(self, memory: Memory) -> list[npt.NDArray[Any]]:
        """Return a writable array per leaf over the slot's memory, for its producer."""
        buffer = memory.view()
        return [np.ndarray(leaf.shape, leaf.dtype, buffer=buffer, offset=leaf.offset_bytes) for leaf in self.leaves]

    def row(self, views: Sequence[npt.NDArray[Any]], position: int) -> list[npt.NDArray[Any]]:
        """Return a writable array per leaf over row `position`."""
        return [view[position, ...] for view in views]

    def write(self, views: Sequence[npt.NDArray[Any]], position: int, sample: Any) -> None:
        """Write one sample into row `position`.

        Raises:
            UsageError: It does not have the structure, shapes and dtypes of the first one.
        """
        if type(sample) is np.ndarray and self.structure is LEAF and (sample.shape, sample.dtype) == self.rows[0]:
            views[0][position] = sample  # what the rest comes to; threads that copy want to hold the GIL but briefly
            return
        values = self.structure.leaves_of(sample)
        if values is None:
            _, structure = flatten(sample)
            raise UsageError(
                f"its parts are {listed(structure)}, the first sample had {listed(self.structure)}",
                hint="return the same parts for every sample",
            )
        for value, leaf, row, view in zip(values, self.leaves, self.rows, views, strict=True):
            like = type(value) is np.ndarray and (value.shape, value.dtype) == row  # nearly always
            view[position] = value if like else _fitted(value, leaf)

    def settle(
        self, views: Callable[[], Sequence[npt.NDArray[Any]]], rows: int, kept: npt.NDArray[np.intp] | None
    ) -> tuple[int, ...]:
        """Bring the rows that a batch has to its beginning, when all are written.

        Args:
            views: Returns the arrays over its slot.
            rows: How many it has.
            kept: Which, where some are left out; else None.

        Returns:
            The first axis of each leaf as its consumer sees it.
        """
        if kept is not None:
            for view in views():
                view[:rows] = view[kept]
        return (rows,) * len(self.leaves)

    def shapes(self, trim: tuple[int, ...] | None) -> list[tuple[int, ...]]:
        """Return the shape of each leaf that a consumer sees, given what `settle` returned; None for all there is."""
        if trim is None:
            return [leaf.shape for leaf in self.leaves]
        return [(first, *row) for first, (row, _) in zip(trim, self.rows, strict=True)]

    def nbytes(self, trim: tuple[int, ...]) -> int:
        """Return the bytes that a consumer gets, given what `settle` returned."""
        return sum(first * dtype.itemsize * math.prod(row) for first, (row, dtype) in zip(trim, self.rows, strict=True))

    def runs(self, trim: tuple[int, ...] | None) -> list[tuple[int, int]]:  # noqa: ARG002 - for those who leave gaps
        """Return first byte and length of what is to travel, if that is less than the whole; else nothing."""
        return []


def _fitted(value: Any, leaf: Leaf) -> npt.NDArray[Any]:
    """Return a leaf of a sample as an array, if it looks like that of the first one.

    Raises:
        UsageError: It does not.
    """
    array = as_numbers(value, leaf.name)
    if array.dtype != leaf.dtype:
        raise as_other_dtype(leaf.label, array.dtype, leaf.dtype)
    if array.shape != leaf.shape[1:]:
        raise UsageError(
            f"{leaf.label} has shape {array.shape}, the first sample had {leaf.shape[1:]}",
            hint="pad, crop or resize it in the source, or name it in ragged=",
        )
    return array


def as_other_dtype(label: str, dtype: np.dtype[Any], first: np.dtype[Any]) -> UsageError:
    """Return the error about a leaf whose dtype is not that of the first sample."""
    return UsageError(
        f"{label} has dtype {dtype}, the first sample had {first}",
        hint="cast it in the source, so that no value changes unseen",
    )


def as_numbers(value: Any, name: str) -> npt.NDArray[Any]:
    """Return `value` as an array of numbers, without copying where it is one.

    Raises:
        UsageError: It is not made of numbers of a fixed size in the machine's byte order.
    """
    label = f"leaf {name!r}" if name else "the sample"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list; a tensor with a gradient or on a GPU
        raise UsageError(f"{label} is no array: {error}", hint="return NumPy arrays or CPU tensors") from error
    if array.dtype.kind not in _NUMBER_KINDS or array.dtype.names or array.dtype == _OPAQUE:
        raise UsageError(
            f"{label} has dtype {array.dtype}", hint="turn it into numbers in the source, or leave it out of the sample"
        )
    if not array.dtype.isnative:
        raise UsageError(
            f"{label} has dtype {array.dtype}, not in this machine's byte order",
            hint="convert it with .astype(dtype.newbyteorder('='))",
        )
    return array


def shaped(root: npt.NDArray[np.uint8], leaf: Leaf, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the leaf as a view with the given shape into `root`, the bytes of its slot."""
    size = math.prod(shape) * leaf.dtype.itemsize
    return root[leaf.offset_bytes : leaf.offset_bytes + size].view(leaf.dtype).reshape(shape)


def listed(structure: Structure) -> str:
    """Return the names of the leaves, as messages show them."""
    names = structure.names()
    return ", ".join(repr(name) for name in names) if names != [""] else "one array"
