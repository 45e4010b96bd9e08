"""Batches with leaves of any number of rows: padded, or one behind the other with offsets."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from interlock._core._tree import LEAF, Structure, flatten
from interlock.errors import InternalError, UsageError
from interlock.feed._layout import Layout, as_numbers, as_other_dtype, listed
from interlock.feed._ragged import Offsets, Padded, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NEAR_BYTES = 128 << 10
"""Unused bytes between two used ones are copied along up to so many: a copy of its own takes a link as long."""


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """One leaf of a sample.

    Attributes:
        name: Its dotted name.
        at: Position of its first leaf in the batch.
        shape: What is the same in all samples: of the leaf, or of each of its rows where it is ragged.
        dtype: Element type.
        spec: How it is ragged; None where it is not.
    """

    name: str
    at: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: Ragged | None

    @property
    def label(self) -> str:
        """The name as messages show it."""
        return f"leaf {self.name!r}" if self.name else "the array"

    def array(self, value: Any) -> npt.NDArray[Any]:
        """Return what is written of a value.

        Raises:
            UsageError: It does not look like the first sample's, or has too many rows.
        """
        if type(value) is list and not value and self.spec is not None:
            return np.empty((0, *self.shape), self.dtype)  # an empty list says nothing of its dtype
        array = value if type(value) is np.ndarray else as_numbers(value, self.name)
        if array.dtype != self.dtype:
            as_numbers(array, self.name)  # what makes no numbers at all is said first
            raise as_other_dtype(self.label, array.dtype, self.dtype)
        if self.spec is None:
            if array.shape != self.shape:
                raise UsageError(
                    f"{self.label} has shape {array.shape}, the first sample had {self.shape}",
                    hint="pad, crop or resize it in the source, or name it in ragged=",
                )
            return array
        if array.ndim == 0 or array.shape[1:] != self.shape:
            raise UsageError(
                f"{self.label} has shape {array.shape}, the first sample had {('any', *self.shape)}",
                hint="only the first dimension of a ragged leaf may differ",
            )
        if len(array) <= self.spec.length:
            return array
        if self.spec.truncate:
            return array[: self.spec.length]
        raise UsageError(
            f"{self.label} has {len(array)} rows",
            why=f"ragged= allows {self.spec.length}",
            hint="raise its length there, or cut what is longer with truncate=True",
        )


@final
@dataclass(frozen=True, slots=True)
class RaggedLayout(Layout):
    """A layout in which some leaves of a sample have any number of rows.

    Each of these is two leaves of the batch. While samples are written, the second one holds the number of rows of each
    sample, and the rows of sample `i` begin at `i` times the most that one may have: so samples are written in any
    order, by anybody who sees the slot. `settle` makes offsets of the numbers and moves the rows together.

    Attributes:
        sample: How the leaves of a sample hang together.
        parts: Those leaves.
    """

    ragged: ClassVar[bool] = True
    sample: Structure
    parts: tuple[_Part, ...]

    @property
    def names(self) -> list[str]:
        """Names of the leaves of a sample."""
        return [part.name for part in self.parts]

    def write(self, views: Sequence[npt.NDArray[Any]], position: int, sample: Any) -> None:
        """As in `Layout`.

        Raises:
            UsageError: It does not have the parts, shapes and dtypes of the first one, or too many rows.
        """
        for value, part in zip(self._leaves_of(sample), self.parts, strict=True):
            array, view, spec = part.array(value), views[part.at], part.spec
            if spec is None:
                view[position] = array
                continue
            rows = len(array)
            if isinstance(spec, Padded):
                view[position, :rows] = array
                view[position, rows:] = spec.value
                views[part.at + 1][position] = rows
            else:
                first = position * spec.length
                view[first : first + rows] = array
                views[part.at + 1][position + 1] = rows

    def _leaves_of(self, sample: Any) -> list[Any]:
        found = self.sample.leaves_of(sample)
        if found is not None:
            return found
        leaves: list[Any] = []
        if not self._take(sample, self.sample, leaves):
            _, structure = _flatten(sample, {part.name for part in self.parts if part.spec is not None})
            raise UsageError(
                f"its parts are {listed(structure)}, the first sample had {listed(self.sample)}",
                hint="return the same parts for every sample",
            )
        return leaves

    def _take(self, value: Any, structure: Structure, values: list[Any]) -> bool:
        """Collect the leaves of a sample, ragged ones that are lists too; return whether it is like the first one."""
        if structure.kind is None:
            values.append(value)
            if isinstance(value, list):
                return self.parts[len(values) - 1].spec is not None
            return not isinstance(value, (dict, tuple))
        if type(value) is not structure.kind:
            return False
        if isinstance(value, dict):
            if tuple(value) != structure.keys:
                return False
            value = tuple(value.values())
        children = structure.children
        return len(value) == len(children) and all(
            self._take(one, child, values) for one, child in zip(value, children, strict=True)
        )

    def settle(
        self, views: Callable[[], Sequence[npt.NDArray[Any]]], rows: int, kept: npt.NDArray[np.intp] | None
    ) -> tuple[int, ...]:
        """As in `Layout`; brings the rows of leaves with offsets together.

        Raises:
            InternalError: A sample was not written.
        """
        arrays, trim = views(), [rows] * len(self.leaves)
        for part in self.parts:
            values = arrays[part.at]
            if isinstance(part.spec, Offsets):
                total = _join(part.spec, values, arrays[part.at + 1], np.arange(rows) if kept is None else kept)
                trim[part.at] = rows * part.spec.length if part.spec.fixed else total
                trim[part.at + 1] = rows + 1
            elif kept is not None:
                for view in arrays[part.at : part.at + (1 if part.spec is None else 2)]:
                    view[:rows] = view[kept]
        return tuple(trim)

    def runs(self, trim: tuple[int, ...] | None) -> list[tuple[int, int]]:
        """As in `Layout`: where less than the capacity of a leaf with offsets is used, the rest need not travel."""
        if trim is None or not any(isinstance(part.spec, Offsets) and not part.spec.fixed for part in self.parts):
            return []
        runs: list[tuple[int, int]] = []
        for leaf, shape in zip(self.leaves, self.shapes(trim), strict=True):
            size_bytes = replace(leaf, shape=shape).size_bytes
            if not size_bytes:
                continue
            if runs and leaf.offset_bytes - sum(runs[-1]) <= _NEAR_BYTES:
                start = runs[-1][0]
                runs[-1] = (start, leaf.offset_bytes + size_bytes - start)
            else:
                runs.append((leaf.offset_bytes, size_bytes))
        return runs


def _join(spec: Offsets, values: npt.NDArray[Any], offsets: npt.NDArray[np.int64], kept: npt.NDArray[np.intp]) -> int:
    """Move the rows of the samples `kept` together, make offsets of their numbers, and return their sum."""
    counts = offsets[1:][kept]
    if ((counts < 0) | (counts > spec.length)).any():
        raise InternalError("a batch is finished though a sample of it was not written")
    flat = values.reshape(-1).view(np.uint8)
    row_bytes = flat.size // len(values)
    place = 0
    for position, count in zip(kept.tolist(), counts.tolist(), strict=True):
        start, size_bytes = position * spec.length * row_bytes, count * row_bytes
        if start != place and size_bytes:  # upwards, and never over what is still to be moved
            flat[place : place + size_bytes] = flat[start : start + size_bytes]
        place += size_bytes
    offsets[0] = 0
    np.cumsum(counts, out=offsets[1 : len(kept) + 1])
    total = int(offsets[len(kept)])
    if spec.fixed:
        values[total : len(kept) * spec.length] = np.zeros((), values.dtype)
    return total


def lay_out(sample: Any, rows: int, ragged: Mapping[str, Ragged]) -> Layout:
    """Lay out a batch of `rows` samples like this one. Names in `ragged` that it lacks are for `require_fit`.

    Raises:
        UsageError: The sample has no array, one that is not made of numbers, or a ragged one without rows.
    """
    if not ragged:
        return Layout.of_sample(sample, rows)
    values, structure = _flatten(sample, ragged)
    if not values:
        raise UsageError("a sample holds no array", hint="return an array, a number, or a dict or tuple of them")
    parts: list[_Part] = []
    shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
    for value, name in zip(values, structure.names(), strict=True):
        part = _part(value, name, len(shapes), ragged.get(name))
        parts.append(part)
        shapes += _shapes(part, rows)
    batch = _doubled(structure, iter(parts))
    arrays = [(name, *described) for name, described in zip(batch.names(), shapes, strict=True)]
    packed = Layout.pack(batch, arrays)
    return RaggedLayout(packed.structure, packed.leaves, packed.size_bytes, packed.rows, structure, tuple(parts))


def _part(value: Any, name: str, at: int, spec: Ragged | None) -> _Part:
    array = as_numbers(value, name)
    if spec is None:
        return _Part(name, at, array.shape, array.dtype, None)
    part = _Part(name, at, array.shape[1:], array.dtype, spec)
    if array.ndim == 0:
        raise UsageError(f"{part.label} is a number", why="a ragged leaf has rows", hint="leave it out of ragged=")
    if type(value) is list and not value:
        raise UsageError(
            f"{part.label} is an empty list in the first sample",
            why="that does not say what its numbers are",
            hint="return an empty array with a dtype, as np.empty(0, np.int64)",
        )
    return part


def _shapes(part: _Part, rows: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of each array of a batch that a leaf of a sample becomes."""
    spec = part.spec
    if spec is None:
        return [((rows, *part.shape), part.dtype)]
    if isinstance(spec, Padded):
        return [((rows, int(spec.length), *part.shape), part.dtype), ((rows,), np.dtype(np.int32))]
    return [((rows * int(spec.length), *part.shape), part.dtype), ((rows + 1,), np.dtype(np.int64))]


def _flatten(tree: Any, ragged: Mapping[str, Ragged] | set[str], name: str = "") -> tuple[list[Any], Structure]:
    """Return leaves and structure of a sample; a list under a name in `ragged` is one leaf."""
    if isinstance(tree, (dict, tuple, list)) and not (isinstance(tree, list) and name in ragged):
        flatten(dict.fromkeys(tree) if isinstance(tree, dict) else ())  # refuses keys that are no strings
        keys = tuple(tree) if isinstance(tree, dict) else ()
        inside = list(tree.values()) if isinstance(tree, dict) else list(tree)
        labels = keys or tuple(map(str, range(len(inside))))
        found = [
            _flatten(one, ragged, f"{name}.{label}" if name else label)
            for one, label in zip(inside, labels, strict=True)
        ]
        leaves = [leaf for leaves, _ in found for leaf in leaves]
        return leaves, Structure(type(tree), keys, tuple(structure for _, structure in found))
    return [tree], LEAF


def _doubled(structure: Structure, parts: Iterator[_Part]) -> Structure:
    """Return the structure of a batch: each ragged leaf is a dict of two."""
    if structure.kind is not None:
        return replace(structure, children=tuple(_doubled(child, parts) for child in structure.children))
    spec = next(parts).spec
    if spec is None:
        return LEAF
    return Structure(dict, ("values", "lengths" if isinstance(spec, Padded) else "offsets"), (LEAF, LEAF))


def require_fit(ragged: Mapping[str, Ragged], layout: Layout) -> None:
    """Refuse what can be meant for no sample of the source. For a layout that was just learnt.

    Raises:
        UsageError: `ragged` names a leaf that samples do not have, or a padding value that its dtype cannot hold.
    """
    names = layout.names
    for name in ragged:
        if name not in names:
            shown = ", ".join(map(repr, names)) if names != [""] else "one array, with the name ''"
            close = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"ragged= names {name!r}, which no sample has",
                why=f"the leaves of a sample are {shown}",
                hint=f"did you mean {close[0]!r}?" if close else "use one of these names",
            )
    parts = layout.parts if isinstance(layout, RaggedLayout) else ()
    for part in parts:
        if isinstance(part.spec, Padded) and not _holds(part.dtype, part.spec.value):
            raise UsageError(
                f"{part.label} of dtype {part.dtype} cannot hold the padding value {part.spec.value!r}",
                hint="give another value, or cast the leaf in the source",
            )


def _holds(dtype: np.dtype[Any], value: complex) -> bool:
    """Tell whether `dtype` has the value, or one that rounding makes of it."""
    if np.iscomplexobj(value) and dtype.kind != "c":
        return False
    try:
        with np.errstate(all="ignore"):
            held = np.full((), value, dtype)
        found: Any = held.astype(np.float64).item() if dtype.kind == "V" else held.item()
    except (TypeError, ValueError, OverflowError):
        return False
    if found == value or (found != found and value != value):  # noqa: PLR0124 - NaN
        return True
    return dtype.kind in "fcV" and bool(abs(found - value) <= abs(value) / 8)  # the narrowest floats have 2 bits
