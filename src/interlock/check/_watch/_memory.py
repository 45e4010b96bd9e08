"""Bytes that are watched: where they lie, what they held when last looked at, and which of them changed."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from interlock._core._events import Pattern, Region, new_allocation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock._core._events import AllocationId

_memcmp = ctypes.CDLL(None).memcmp if sys.platform != "win32" else ctypes.cdll.msvcrt.memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int

_MOST_LEAVES = 4096
"""Leaves of one container that are looked at."""
_DEEPEST = 4
_CHUNK_BYTES = 64 * 1024


class Span(NamedTuple):
    """Where the elements of an array lie.

    Attributes:
        address: The first byte that it touches.
        nbytes: Bytes from there to the last one.
        pattern: Which of them, where it is not all.
    """

    address: int
    nbytes: int
    pattern: Pattern | None

    def touches(self, other: Span) -> bool:
        """Tell whether the two may share a byte."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


Keeper = Any
"""A function without arguments: the object whose life keeps the memory valid, or None when that has ended."""


def span_of(value: Any) -> Span | None:
    """Return where an array, a tensor on the CPU or a writeable buffer lies, or None if it is none or holds nothing."""
    if isinstance(value, np.ndarray):
        return _span(value.ctypes.data, value.itemsize, value.shape, value.strides)
    if isinstance(value, (bytearray, memoryview)):
        try:
            flat = np.frombuffer(value, np.uint8)
        except (ValueError, BufferError, TypeError):
            return None
        return Span(flat.ctypes.data, flat.nbytes, None) if flat.nbytes else None
    torch = sys.modules.get("torch")
    tensor: Any = value
    if torch is not None and is_plain_tensor(torch, value) and tensor.numel():
        size = tensor.element_size()
        return _span(
            torch._C.TensorBase.data_ptr(tensor),  # noqa: SLF001 - a simulator patches the public one
            size,
            tuple(tensor.shape),
            tuple(stride * size for stride in tensor.stride()),
        )
    return None


def is_plain_tensor(torch: Any, value: Any) -> bool:
    """Tell whether `value` is a tensor that lies in host memory itself, and no wrapper of a subclass."""
    kinds = (getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None))
    plain: Any = value
    return type(value) in kinds and plain.device.type == "cpu" and plain.layout is torch.strided


def _span(address: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Span | None:
    if not itemsize or 0 in shape:
        return None
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low, high = sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)
    nbytes = high - low + itemsize
    if nbytes == itemsize * int(np.prod(shape, dtype=np.int64)):
        return Span(address + low, nbytes, None)
    return Span(address + low, nbytes, Pattern(itemsize, shape, tuple(abs(stride) for stride in strides)))


def root_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array that holds the memory which `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def keeper_of(value: Any) -> Keeper:
    """Return what keeps the memory of `value` valid, without extending its life.

    Memory that belongs to no array, as that of a `bytearray`, may be written when the array has died. So the array
    over it is held.
    """
    if isinstance(value, np.ndarray):
        root = root_of(value)
        if root.base is None:
            return weakref.ref(root)
        return lambda: root
    if isinstance(value, (bytearray, memoryview)):
        return lambda: value
    return weakref.ref(value)


@final
class Memory:
    """One span of bytes under watch.

    Args:
        span: Where it lies.
        keepers: The memory is valid while any of them returns something.

    Copies: the bytes, once, to compare with; and again whenever they have changed.
    """

    def __init__(self, span: Span, *keepers: Keeper) -> None:
        self.span = span
        self.allocation: AllocationId = new_allocation_id()
        self._keepers = list(keepers)
        self._view = _view_of(span)
        self._seen = self._view.copy()

    def keep(self, keeper: Keeper) -> None:
        """Add something that keeps the memory valid."""
        self._keepers.append(keeper)

    def holder(self) -> object | None:
        """Return something that keeps the memory valid while the caller holds it, or None if the memory is gone."""
        return next((one for keeper in self._keepers if (one := keeper()) is not None), None)

    def changed(self) -> Region | None:
        """Return which bytes differ from when they were last looked at, and remember what they hold now."""
        holder = self.holder()
        if holder is None or self._is_same():
            return None
        if self.span.pattern is not None:
            self._seen = self._view.copy()
            return Region(self.allocation, 0, self.span.nbytes, self.span.pattern)
        start, end = self._first_difference(), self._last_difference()
        if start >= end:  # changed back while we looked
            return None
        self._seen[start:end] = self._view[start:end]
        return Region(self.allocation, start, end - start)

    def _first_difference(self) -> int:
        for start in range(0, self.span.nbytes, _CHUNK_BYTES):
            differs = self._differs(start, min(start + _CHUNK_BYTES, self.span.nbytes))
            if differs is not None:
                return start + int(differs[0])
        return self.span.nbytes

    def _last_difference(self) -> int:
        for end in range(self.span.nbytes, 0, -_CHUNK_BYTES):
            start = max(0, end - _CHUNK_BYTES)
            differs = self._differs(start, end)
            if differs is not None:
                return start + int(differs[-1]) + 1
        return 0

    def _differs(self, start: int, end: int) -> np.ndarray[Any, np.dtype[np.intp]] | None:
        """Return which of the bytes `start` to `end` have changed, or None if none has."""
        if not _memcmp(self.span.address + start, self._seen.ctypes.data + start, end - start):
            return None
        where = np.flatnonzero(self._view[start:end] != self._seen[start:end])
        return where if len(where) else None

    def _is_same(self) -> bool:
        if self.span.pattern is None:
            return not _memcmp(self.span.address, self._seen.ctypes.data, self.span.nbytes)
        return bool(np.array_equal(self._view, self._seen))


def _view_of(span: Span) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat = np.ctypeslib.as_array((ctypes.c_ubyte * span.nbytes).from_address(span.address))
    if span.pattern is None:
        return flat
    shape = (*span.pattern.shape, span.pattern.itemsize)
    strides = (*span.pattern.strides_bytes, 1)
    view: np.ndarray[Any, np.dtype[np.uint8]] = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
    return view


def leaves(value: Any, accept: Callable[[Any], bool] = lambda _: True, depth: int = _DEEPEST) -> Iterator[Any]:
    """Yield the arrays, tensors and byte arrays inside lists, tuples, dicts and sets; at most `_MOST_LEAVES`."""
    todo, count = [(value, depth)], 0
    while todo and count < _MOST_LEAVES:
        one, left = todo.pop()
        count += 1
        if isinstance(one, (np.ndarray, bytearray, memoryview)) or _is_tensor(one):
            if accept(one):
                yield one
        elif left and isinstance(one, dict):
            todo.extend((inner, left - 1) for inner in one.values())
        elif left and isinstance(one, (list, tuple, set, frozenset, deque)):
            todo.extend((inner, left - 1) for inner in one)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    return kind is not None and isinstance(value, kind)
