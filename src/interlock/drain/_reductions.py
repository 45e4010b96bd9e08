"""What becomes of an output before it leaves its device: less. Done by its framework, in the order of its producer."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from interlock.drain._leaves import Leaf, leaf_of
from interlock.drain._outputs import refuse_same_names
from interlock.drain._schema import IMAGINARY_HINT, NARROW, NUMBERS
from interlock.errors import DeviceError, UsageError
from interlock.frameworks import reductions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from interlock.drain._outputs import AnyLeaf
    from interlock.drain._ragged_leaves import RaggedLeaf


@final
@dataclass(frozen=True, slots=True)
class Cast:
    """Give an output another element type, as the framework converts it.

    Attributes:
        dtype: As `float16`; `bfloat16` and `float8_…` where the sink keeps them.
    """

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in NUMBERS | NARROW:
            raise UsageError(
                f"{self!r} names no element type of sinks", hint="use float16, float32, uint8 and the like"
            )
        if self.dtype in NARROW:
            try:
                importlib.import_module("ml_dtypes")
            except ModuleNotFoundError as error:
                raise UsageError(f"{self!r} needs ml_dtypes", hint="pip install 'interlock[safetensors]'") from error

    def apply(self, ops: Any, value: Any) -> dict[str, Any]:
        """Return what is drained in place of `value`: what is added to its name, to array."""
        return {"": ops.cast(value, self.dtype)}


@final
@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the largest of each row's last axis: columns `NAME.values`, largest first, and `NAME.indices`, int32.

    NaN counts as the largest. Which of equal values is kept is not said.

    Attributes:
        count: How many.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"{self!r} keeps nothing", hint="keep at least one")

    def apply(self, ops: Any, value: Any) -> dict[str, Any]:
        """Return what is drained in place of `value`: what is added to its name, to array."""
        size = _last_axis(value)
        if size < self.count:
            raise UsageError(f"its rows have {size} values")
        values, indices = ops.top_k(value, self.count)
        return {".values": values, ".indices": indices}


@final
@dataclass(frozen=True, slots=True)
class Argmax:
    """Keep where the largest of each row's last axis is. NaN counts as the largest.

    Attributes:
        dtype: Of the result; an integer type that can count the axis.
    """

    dtype: str = "int32"

    def __post_init__(self) -> None:
        if self.dtype not in NUMBERS or "int" not in self.dtype:
            raise UsageError(f"{self!r} names no integer type", hint="use int32, uint8, uint16 or int64")

    def apply(self, ops: Any, value: Any) -> dict[str, Any]:
        """Return what is drained in place of `value`: what is added to its name, to array."""
        size, most = _last_axis(value), int(np.iinfo(self.dtype).max)
        if size - 1 > most:
            raise UsageError(f"its rows have {size} values, {self.dtype} ends at {most}", hint="use int32")
        return {"": ops.argmax(value, self.dtype)}


@final
@dataclass(frozen=True, slots=True)
class Quantize:
    """Keep a byte of each value: codes of each row's last axis, with a scale for each vector along it, as float32.

    Columns `NAME.values`, the codes, and `NAME.scale`, which lacks the last axis; for `uint8` also `NAME.zero`:

    - `int8`: `x = values * scale`. The scale is the largest magnitude / 127; 0 is kept exactly.
    - `uint8`: `x = values * scale + zero`. The zero is the smallest value, the scale the range / 255.

    What comes back differs by at most `scale * (1 / 2 + 2**-14)`, rounding of the formula aside. Values count as
    float32. Vectors in which nothing differs (`int8`: from 0) by more than some 1e-36 have the scale 0. If a value is
    NaN or infinite, or the range is too large for float32, the scale is NaN, and so is all that comes back.

    Attributes:
        dtype: `int8`, symmetric, or `uint8`, for values that lie on one side.
    """

    dtype: str = "int8"

    def __post_init__(self) -> None:
        if self.dtype not in {"int8", "uint8"}:
            raise UsageError(f"{self!r} names no type of codes", hint="use int8 or uint8")

    def apply(self, ops: Any, value: Any) -> dict[str, Any]:
        """Return what is drained in place of `value`: what is added to its name, to array."""
        _last_axis(value)
        codes, scale, zero = ops.quantize(value, self.dtype)
        return {".values": codes, ".scale": scale, **({".zero": zero} if self.dtype == "uint8" else {})}


@final
@dataclass(frozen=True, slots=True, init=False)
class Crop:
    """Keep a part of each row, as `row[axes]` does: `Crop(slice(10, -10), slice(10, -10))`.

    Attributes:
        axes: One slice for each of the row's first axes, without a step; within the axis, and not empty.
    """

    axes: tuple[slice, ...]

    def __init__(self, *axes: slice) -> None:
        object.__setattr__(self, "axes", axes)
        if not axes:
            raise UsageError("Crop() keeps all", hint="give a slice for each axis, as Crop(slice(10, -10))")
        for one in axes:
            bounds = [getattr(one, name, 0.0) for name in ("start", "stop")]  # of what is no slice: no integers
            if getattr(one, "step", None) not in {None, 1} or not all(map(_is_bound, bounds)):
                raise UsageError(f"{one!r} in Crop is no slice of integers without a step", hint="use slice(10, -10)")

    def apply(self, ops: Any, value: Any) -> dict[str, Any]:  # noqa: ARG002 - every framework's arrays are sliced so
        """Return what is drained in place of `value`: what is added to its name, to array."""
        shape = tuple(value.shape[1:])
        if len(self.axes) > len(shape):
            raise UsageError(f"its rows have {len(shape)} axes, the shape of one is {shape}")
        for axis, (one, size) in enumerate(zip(self.axes, shape, strict=False)):
            outside = [bound for bound in (one.start, one.stop) if bound is not None and not -size <= bound <= size]
            start, stop, _ = one.indices(size)
            if outside or start >= stop:
                what = f"{outside[0]} lies outside" if outside else "nothing is left"
                raise UsageError(f"{what} of axis {axis} of a row, which has {size} values")
        return {"": value[(slice(None), *self.axes)]}


Reduction: TypeAlias = Cast | TopK | Argmax | Quantize | Crop

_SPLITS = (TopK, Quantize)
"""Of what these make, nothing can be reduced further."""


def _is_bound(bound: object) -> bool:
    return bound is None or (isinstance(bound, Integral) and not isinstance(bound, bool))


def _last_axis(value: Any) -> int:
    if len(value.shape) < 2:  # noqa: PLR2004 - rows, and an axis in each
        raise UsageError(f"each of its rows is one number, the shape is {tuple(value.shape)}")
    return int(value.shape[-1])


def check_reductions(outputs: Mapping[str, Reduction | Sequence[Reduction]] | None) -> dict[str, tuple[Reduction, ...]]:
    """Return the reductions by the name of their output, in their order.

    Raises:
        UsageError: One is none, or another one comes after one that makes several columns.
    """
    found: dict[str, tuple[Reduction, ...]] = {}
    for name, given in (outputs or {}).items():
        chain = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        if not chain or not all(isinstance(one, Reduction) for one in chain):
            raise UsageError(
                f"outputs[{name!r}] is {given!r}",
                hint="use interlock.drain.Cast('float16'), TopK(5), Argmax(), Quantize() or Crop(slice(10, -10)), or a "
                "list of them; or leave it out, to keep all",
            )
        for one in chain[:-1]:
            if isinstance(one, _SPLITS):
                raise UsageError(f"outputs[{name!r}] goes on after {one!r}", why="that makes several columns of it")
        found[name] = chain
    return found


def reduced(leaves: Sequence[AnyLeaf], outputs: Mapping[str, tuple[Reduction, ...]]) -> list[AnyLeaf]:
    """Return what is drained in place of `leaves`.

    Ordering: Computed by the framework of each, as any operation of the program would be: on CUDA on the stream that is
        current on its device. Nothing is waited for.

    Raises:
        UsageError: There is no such output, or one cannot be reduced so; the message names it.
        DeviceError: Its device has no memory for the result.
    """
    names = [leaf.name for leaf in leaves]
    for name in outputs:
        if name not in names:
            raise UsageError(f"outputs= names {name!r}, which is not there", why=f"the outputs are {', '.join(names)}")
    found: list[AnyLeaf] = []
    for leaf in leaves:
        parts = [leaf]
        for one in outputs.get(leaf.name, ()):
            parts = _leaves_of(parts[0], one)
        found += parts
    refuse_same_names(found)
    return found


def _leaves_of(leaf: AnyLeaf, reduction: Reduction) -> list[AnyLeaf]:
    if isinstance(leaf, Leaf):
        return [leaf_of(f"{leaf.name}{suffix}", value, leaf.rows) for suffix, value in _parts(leaf, reduction).items()]
    return [*_ragged_parts(leaf, reduction)]


def _ragged_parts(leaf: RaggedLeaf, reduction: Reduction) -> list[RaggedLeaf]:
    """Reduce the values, each as it would be in a row of its own; how many there are in a row stays."""
    if isinstance(reduction, Crop):
        raise UsageError(
            f"output {leaf.name!r} cannot be put through {reduction!r}",
            why="the first axis that it crops is the one that differs from row to row",
            hint="crop it in the program, and put the lengths that are left",
        )
    if not isinstance(reduction, Cast) and not leaf.value_shape:
        raise UsageError(
            f"output {leaf.name!r} cannot be put through {reduction!r}",
            why="its last axis is the one that differs from row to row",
            hint="compute it in the program, where it is known what is padding",
        )
    arrays = leaf.values if isinstance(leaf.values, tuple) else (leaf.values,)
    parts = [_parts(one, reduction) for one in arrays]
    return [leaf.with_values(f"{leaf.name}{suffix}", [part[suffix] for part in parts]) for suffix in parts[0]]


def _parts(leaf: Leaf, reduction: Reduction) -> dict[str, Any]:
    """Return what is left of an array: what is added to its name, to array."""
    if leaf.framework is None:
        raise UsageError(
            f"output {leaf.name!r} cannot be put through {reduction!r}",
            why="no framework holds it, so nothing can compute on its device",
            hint="put an array of PyTorch, JAX, CuPy or NumPy",
        )
    what = f"output {leaf.name!r} cannot be put through {reduction!r}"
    if "complex" in str(leaf.value.dtype):
        raise UsageError(what, why=f"its values are {leaf.value.dtype}", hint=IMAGINARY_HINT)
    try:
        return reduction.apply(reductions_of(leaf.framework), leaf.value)
    except UsageError as error:
        raise UsageError(what, why=error.what, hint=error.hint) from error
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if "OutOfMemory" in type(error).__name__:
            raise DeviceError(
                what, why=why, hint="lower the drain's budget_bytes, or put fewer rows at once"
            ) from error
        raise UsageError(what, why=why) from error
