"""Device values as blocks of bytes: where each comes to lie in host memory, and how an array is read from there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import DeviceArray, Piece, Pieces

if TYPE_CHECKING:
    import numpy.typing as npt


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that are copied as they are.

    Attributes:
        array: Where they come from.
        offset_bytes: Where they go, from the beginning of the leaf.
        size_bytes: How many.
    """

    array: DeviceArray
    offset_bytes: int
    size_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Place:
    """One part of an array in host memory.

    Attributes:
        first: Where its first element is in the whole array.
        shape: Its shape.
        offset_bytes: Where it begins, from the beginning of the leaf.
    """

    first: tuple[int, ...]
    shape: tuple[int, ...]
    offset_bytes: int


@final
@dataclass(frozen=True, slots=True)
class Landed:
    """How to read a leaf whose blocks have landed. Holds no device memory.

    Attributes:
        shape: Shape of the whole.
        dtype: Element type.
        places: The parts, if they must be put together; empty where the landed bytes are the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    places: tuple[Place, ...]

    def read(self, host: memoryview, offset_bytes: int) -> npt.NDArray[Any]:
        """Return the array.

        Args:
            host: Where the blocks landed.
            offset_bytes: Where the leaf begins in it.

        Copies: none, unless parts must be put together.
        """
        if not self.places:
            return self._view(host, offset_bytes, self.shape)
        whole = np.empty(self.shape, self.dtype)
        for place in self.places:
            inside = tuple(slice(at, at + size) for at, size in zip(place.first, place.shape, strict=True))
            whole[inside] = self._view(host, offset_bytes + place.offset_bytes, place.shape)
        return whole

    def _view(self, host: memoryview, offset_bytes: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.frombuffer(host, self.dtype, math.prod(shape), offset_bytes).reshape(shape)


def size_of(value: DeviceArray | Pieces) -> int:
    """Return the bytes of a value."""
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize


def blocks_of(value: DeviceArray | Pieces) -> list[Block]:
    """Return the blocks of a value, one behind the other: rows that are in parts come to lie where they belong."""
    if isinstance(value, DeviceArray):
        return [Block(value, 0, size_of(value))]
    blocks = []
    offset = 0
    for piece in value.pieces:
        size = size_of(piece.array)
        blocks.append(Block(piece.array, offset, size))
        offset += size
    return blocks


def landed_of(value: DeviceArray | Pieces) -> Landed:
    """Return how to read a value whose blocks have landed as `blocks_of` says."""
    dtype = np.dtype(value.dtype).newbyteorder("=")
    shape = tuple(value.shape)
    if isinstance(value, DeviceArray) or all(piece.array.shape[1:] == shape[1:] for piece in value.pieces):
        return Landed(shape, dtype, ())
    places = tuple(
        Place(piece.first, tuple(piece.array.shape), block.offset_bytes)
        for piece, block in zip(value.pieces, blocks_of(value), strict=True)
    )
    return Landed(shape, dtype, places)


def rows_of(value: DeviceArray | Pieces, start: int, stop: int) -> DeviceArray | Pieces:
    """Return rows `start` to `stop` of a value; no bytes move."""
    if start == 0 and stop == value.shape[0]:
        return value
    if isinstance(value, DeviceArray):
        row_bytes = size_of(value) // value.shape[0]
        memory = value.memory.slice(start * row_bytes, (stop - start) * row_bytes)
        shape = (stop - start, *value.shape[1:])
        return DeviceArray(value.device, memory, shape, value.dtype, value.ready, stable=value.stable)
    parts = (_rows_of_piece(piece, start, stop) for piece in value.pieces)
    return Pieces((stop - start, *value.shape[1:]), value.dtype, tuple(part for part in parts if part is not None))


def _rows_of_piece(piece: Piece, start: int, stop: int) -> Piece | None:
    at, *others = piece.first
    first, last = max(start, at), min(stop, at + piece.array.shape[0])
    if first >= last:
        return None
    array = rows_of(piece.array, first - at, last - at)
    assert isinstance(array, DeviceArray)  # noqa: S101 - a part of one is one
    return Piece(array, (first - start, *others))
