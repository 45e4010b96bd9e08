"""Ragged outputs of a put: the arrays that they consist of, and how their rows are found in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import DeviceArray, Pieces
from interlock.drain._leaves import ALIGNMENT, Leaf, Part, aligned, array_of, refuse_empty
from interlock.drain._ragged import Ragged, assembled, offsets_of
from interlock.drain._schema import Column, check_dtype
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._rows import RaggedRows
    from interlock.drain._leaves import Key, Reader, Taken
    from interlock.drain._schema import Limits

_STEPS = 16
"""To how many lengths padded arrays are cut where each length is compiled for: so at most a sixteenth is too much."""

_TOLD = "told"
"""The part that says where rows are."""


@final
@dataclass(frozen=True, slots=True)
class RaggedLeaf:
    """One output of a put whose rows differ in their first dimension.

    Attributes:
        name: Column name.
        rows: How many there are.
        values: The values of all rows; or those of each, where they are in arrays of their own.
        padded: Whether the second axis of `values` has the values of one row and padding.
        is_offsets: Whether `told` are offsets, not lengths.
        ends: Where each row begins among the values that belong to rows, and the end; None if not known on the host.
        told: Lengths or offsets on a device, to be looked at when they have landed; None if `ends` is known.
    """

    name: str
    rows: int
    values: Leaf | tuple[Leaf, ...]
    padded: bool
    is_offsets: bool
    ends: npt.NDArray[np.int64] | None
    told: Leaf | None

    @property
    def first(self) -> Leaf:
        """The array of all values, or of those of the first row."""
        return self.values[0] if isinstance(self.values, tuple) else self.values

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of what there are `length` of in a row."""
        return tuple(self.first.value.shape[2 if self.padded else 1 :])

    @property
    def payload_bytes(self) -> int:
        """Bytes of its rows; with what belongs to none where that is not known on the host."""
        if self.ends is None:
            return self.first.payload_bytes
        per_row = self.first.value.shape[1] if self.padded else 1
        return int(self.ends[-1]) * self.first.row_bytes // max(1, per_row)

    @property
    def _join(self) -> Callable[[Sequence[Any]], Any] | None:
        """What puts the arrays of a list together where they lie; None: each travels alone."""
        join: Callable[[Sequence[Any]], Any] | None = getattr(self.first.framework, "join", None)
        return join

    def found(self, *, borrow: bool) -> RaggedLeaf:
        """As in `Leaf`; arrays of single rows are found when they are taken."""
        values = self.values if isinstance(self.values, tuple) else self.values.found(borrow=borrow)
        told = None if self.told is None else self.told.found(borrow=borrow)
        return replace(self, values=values, told=told)

    def parts(self, start: int, stop: int) -> tuple[Part, ...]:
        """Return what is to be taken of rows `start` to `stop`. A list is joined here, by its framework if it can."""
        if isinstance(self.values, tuple):
            return self._listed(self.values[start:stop])
        parts = []
        if self.padded:
            parts.append(Part((self.name, "values"), self.values, start, stop))
        elif self.ends is None:  # it goes whole or not at all
            parts.append(Part((self.name, "values"), self.values, 0, self.values.rows))
        else:
            parts.append(Part((self.name, "values"), self.values, int(self.ends[start]), int(self.ends[stop])))
        if self.told is not None:
            parts.append(Part((self.name, _TOLD), self.told, start, stop + self.is_offsets, is_told=True))
        return tuple(parts)

    def _listed(self, leaves: tuple[Leaf, ...]) -> tuple[Part, ...]:
        join = self._join
        if join is None:
            return tuple(
                Part((self.name, f"row {row}"), leaf, 0, leaf.rows, is_new=True) for row, leaf in enumerate(leaves)
            )
        try:
            value = join([leaf.value for leaf in leaves])
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            kind = DeviceError if "OutOfMemory" in type(error).__name__ else UsageError
            raise kind(f"the rows of output {self.name!r} cannot be joined", why=why) from error
        whole = array_of(self.name, value)
        return (Part((self.name, "values"), whole, 0, whole.rows, is_new=True, is_own=True),)

    def column(self, taken: Mapping[Key, Taken], limits: Limits) -> Column:
        """As in `Leaf`."""
        if not limits.ragged:
            raise UsageError(
                f"output {self.name!r} has rows of any length, and {limits.scheme}: does not hold those",
                hint="pad them to one shape, or use parquet:PATH or npy:PATH",
            )
        one = next(one for (name, part), one in taken.items() if name == self.name and part != _TOLD)
        return Column(self.name, check_dtype(self.name, np.dtype(one.dtype), limits), (None, *self.value_shape))

    def reader(self, readers: Mapping[Key, Reader], start: int, stop: int) -> Callable[[], RaggedRows]:
        """As in `Leaf`. What it returns holds none of the arrays."""
        told = readers.get((self.name, _TOLD))
        if told is None:
            assert self.ends is not None  # noqa: S101 - by construction: one of the two
            told = partial(np.asarray, self.ends[start : stop + 1] - self.ends[start])
        values = [reader for (name, part), reader in readers.items() if name == self.name and part != _TOLD]
        is_offsets = self.is_offsets or self.ends is not None
        return partial(assembled, self.name, values, told, is_offsets=is_offsets, padded=self.padded)

    def size_bytes(self, start: int, stop: int) -> int:
        """As in `Leaf`."""
        told = 0 if self.told is None else aligned(self.told.row_bytes * (stop - start + 1))
        if self.padded or self.ends is None:
            values = self.first.row_bytes * (stop - start if self.padded else self.first.rows)
        else:
            values = int(self._value_bytes(start, stop).sum())
        return aligned(values) + told

    def row_sizes(self) -> int | npt.NDArray[np.int64]:
        """As in `Leaf`; of each row where they are not padded. Only of a leaf that is `settled`."""
        if self.padded:
            return self.first.row_bytes + (0 if self.told is None else self.told.row_bytes)
        return self._value_bytes(0, self.rows)

    def _value_bytes(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        assert self.ends is not None  # noqa: S101 - it is settled
        sizes = np.diff(self.ends[start : stop + 1]) * self.first.row_bytes
        is_apart = isinstance(self.values, tuple) and self._join is None
        return -(-sizes // ALIGNMENT) * ALIGNMENT if is_apart else sizes

    def settled(self, read: Callable[[Leaf], npt.NDArray[Any]]) -> RaggedLeaf:
        """Return the leaf with known ends, if its rows cannot be told apart without.

        Args:
            read: Brings an array to the host.

        Raises:
            UsageError: The offsets do not fit the values.
        """
        if self.ends is not None or self.padded or self.told is None:
            return self
        return self.with_ends(read(self.told))

    def with_ends(self, told: npt.NDArray[Any]) -> RaggedLeaf:
        """Return the leaf with known ends.

        Raises:
            UsageError: The lengths or offsets do not fit the values.
        """
        room = self.first.value.shape[1] if self.padded else self.first.rows
        ends = offsets_of(self.name, told, is_offsets=self.is_offsets, room=room, each=self.padded)
        return replace(self, ends=ends, told=None)

    def with_values(self, name: str, arrays: Sequence[Any]) -> RaggedLeaf:
        """Return a leaf whose rows have as many values as these, each made of one of these."""
        leaves = tuple(array_of(name, one) for one in arrays)
        return replace(self, name=name, values=leaves if isinstance(self.values, tuple) else leaves[0])

    def trimmed(self) -> RaggedLeaf:
        """Return the leaf without the padding that is behind the longest row, if that can be cut off where it lies."""
        values = self.values
        if not self.padded or self.ends is None or isinstance(values, tuple) or values.framework is None:
            return self
        longest, room = int(np.diff(self.ends).max(initial=0)), int(values.value.shape[1])
        if values.framework.immutable:
            step = -(-room // _STEPS)
            longest = min(room, -(-longest // step) * step) if step else room
        return self if longest == room else replace(self, values=array_of(self.name, values.value[:, :longest]))


def ragged_leaf(name: str, ragged: Ragged, rows: int) -> RaggedLeaf:
    """Return the leaf of a ragged output.

    Raises:
        UsageError: Something of it is no array, or has another shape than it must; the message names the output.
    """
    if isinstance(ragged.values, (list, tuple)):
        return _of_list(name, ragged.values, rows)
    values = array_of(name, ragged.values)
    shape = tuple(values.value.shape)
    is_offsets = ragged.offsets is not None
    padded = not is_offsets and not ragged.flat
    if padded and (len(shape) == 1 or shape[0] != rows):
        raise UsageError(
            f"the values of output {name!r} have the shape {shape}, and there are {rows} ids",
            why="those with lengths are padded: their first axis is rows, their second the values of each",
            hint="with flat=True the lengths are those of rows that lie one behind the other; or give offsets",
        )
    refuse_empty(name, shape[2 if padded else 1 :])
    leaf = RaggedLeaf(name, rows, values, padded, is_offsets, None, None)
    told = _told(name, ragged.offsets if is_offsets else ragged.lengths, rows + is_offsets, is_offsets=is_offsets)
    if isinstance(told, Leaf):
        return replace(leaf, told=told)
    return leaf.with_ends(told).trimmed()


def _of_list(name: str, arrays: Sequence[Any], rows: int) -> RaggedLeaf:
    if len(arrays) != rows:
        raise UsageError(f"output {name!r} is a list of {len(arrays)} arrays, and there are {rows} ids")
    leaves = tuple(array_of(name, one) for one in arrays or [np.empty(0)])
    first = leaves[0]
    for row, leaf in enumerate(leaves):
        mine, others = (leaf.framework, leaf.value.dtype), (first.framework, first.value.dtype)
        if mine != others or leaf.value.shape[1:] != first.value.shape[1:]:
            raise UsageError(
                f"row {row} of output {name!r} is {leaf.value.dtype} of shape {tuple(leaf.value.shape)}",
                why=f"row 0 is {first.value.dtype} of shape {tuple(first.value.shape)}",
                hint="arrays of one list have one dtype and framework, and differ in their first axis alone",
            )
    refuse_empty(name, tuple(first.value.shape[1:]))
    ends = np.concatenate(([0], np.cumsum([leaf.rows for leaf in leaves]))).astype(np.int64)
    return RaggedLeaf(name, rows, leaves, padded=False, is_offsets=True, ends=ends, told=None)


def _told(name: str, value: Any, count: int, *, is_offsets: bool) -> npt.NDArray[Any] | Leaf:
    """Return lengths or offsets: a copy if they are on the host and known, else the array."""
    what = f"the {'offsets' if is_offsets else 'lengths'} of output {name!r}"
    if isinstance(value, (list, tuple, range)):
        try:
            value = np.asarray(value, None if len(value) else np.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"{what} are no numbers", why=str(error), hint="give an array of integers") from error
    leaf = array_of(name, value)
    if tuple(leaf.value.shape) != (count,):
        raise UsageError(
            f"{what} have the shape {tuple(leaf.value.shape)}",
            why=f"there are {count - is_offsets} ids",
            hint="offsets are one more than rows" if is_offsets else "there is one length per row",
        )
    held = leaf.found(borrow=True)
    taken = held.take(0, count, borrow=True)
    if np.dtype(taken.dtype).kind not in "iu":
        raise UsageError(f"{what} are {taken.dtype}", hint="they are integers")
    if isinstance(taken, (DeviceArray, Pieces)) or not taken.ready.poll():
        return leaf
    return np.array(taken.read())
