"""Where the leaves of a batch lie in its slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock._core._handover import Leaf
from interlock._core._tree import LEAF, Structure, flatten
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock._core._protocols import Memory

ALIGNMENT_BYTES = 128
"""XLA uses host memory in place only from a 64-byte boundary on; 128 is two cache lines, as prefetchers fetch them."""

_NUMBER_KINDS = "biufcV"
"""Kinds of dtype with a fixed size and no pointers; V covers bfloat16 and its like, records are refused by name."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """All arrays of a batch, packed into one slot so that they cross a link in one copy.

    Attributes:
        structure: How the leaves hang together.
        leaves: In leaf order.
        size_bytes: Bytes of a full batch, padding included; at least one.
        rows: Shape and dtype of one row of each leaf.
    """

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

    def views(self, memory: Memory) -> list[npt.NDArray[Any]]:
        """Return a writable array per leaf over the slot's memory, for its producer."""
        buffer = memory.view()
        return [np.ndarray(leaf.shape, leaf.dtype, buffer=buffer, offset=leaf.offset_bytes) for leaf in self.leaves]

    def write(self, views: Sequence[npt.NDArray[Any]], position: int, sample: Any) -> None:
        """Write one sample into row `position`.

        Raises:
            UsageError: It does not have the structure, shapes and dtypes of the first one.
        """
        if type(sample) is np.ndarray and self.structure is LEAF and (sample.shape, sample.dtype) == self.rows[0]:
            views[0][position] = sample  # what the rest comes to; threads that copy want to hold the GIL but briefly
            return
        values, structure = flatten(sample)
        if structure != self.structure:
            raise UsageError(
                f"its parts are {_parts(structure)}, the first sample had {_parts(self.structure)}",
                hint="return the same parts for every sample",
            )
        for value, leaf, view in zip(values, self.leaves, views, strict=True):
            array = as_numbers(value, leaf.name)
            if array.dtype != leaf.dtype:
                raise UsageError(
                    f"{leaf.label} has dtype {array.dtype}, the first sample had {leaf.dtype}",
                    hint="cast it in the source, so that no value changes unseen",
                )
            if array.shape != leaf.shape[1:]:
                raise UsageError(
                    f"{leaf.label} has shape {array.shape}, the first sample had {leaf.shape[1:]}",
                    hint="pad, crop or resize it in the source",
                )
            view[position] = array


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
    if array.dtype.kind not in _NUMBER_KINDS or array.dtype.names or array.dtype == np.dtype("V"):
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


def trimmed(leaf: Leaf, rows: int | None) -> tuple[int, ...]:
    """Return the shape of the leaf that a consumer sees, where a batch has only `rows` rows; None for all."""
    return leaf.shape if rows is None else (rows, *leaf.shape[1:])


def _parts(structure: Structure) -> str:
    names = structure.names()
    return ", ".join(repr(name) for name in names) if names != [""] else "one array"
