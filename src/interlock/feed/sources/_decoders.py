"""Bytes of a file to a sample, by the file's extension."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.feed.sources._files import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import numpy.typing as npt

_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
_INTEGERS = frozenset({"cls", "cls2", "count", "id", "index", "inx", "int"})
_TEXTS = frozenset({"text", "txt"})
_PICKLES = frozenset({"pickle", "pkl", "pt", "pth", "pyd"})


def makes_numbers(extension: str) -> bool:
    """Tell whether `decode_by_extension` gives arrays or numbers, which are what batches are made of."""
    kind = extension.rpartition(".")[2]
    return kind in _IMAGES or kind in _INTEGERS or kind in {"npy", "float"}


def decode_by_extension(extension: str, data: bytes, image_size: tuple[int, int] | None = None) -> Any:
    """Decode a file.

    Args:
        extension: What comes after the first dot of its name, lower case; what comes after the last dot counts.
        data: Its content.
        image_size: (height, width) that images are resized to.

    Returns:
        Images: uint8 of shape (height, width, 3). `npy`: the array, read-only. `cls`, `int` and their like: int64.
        `float`: float64. `txt`: a string. `json`: what it holds.

    Raises:
        ValueError: The content is not what the extension says, or the extension is not known.
        Exception: Whatever an image decoder raises on a damaged file.
    """
    kind = extension.rpartition(".")[2]
    if kind in _IMAGES:
        return _image(data, image_size)
    if kind == "npy":
        return _npy(data)
    if kind in _INTEGERS:
        return np.int64(data.decode().strip())
    if kind == "float":
        return np.float64(data.decode().strip())
    if kind in _TEXTS:
        return data.decode()
    if kind == "json":
        return json.loads(data)
    if kind in _PICKLES:
        raise ValueError("it is pickled, and loading a pickle runs code: give decode= if you trust it")
    raise ValueError(f"nothing is known about extension {kind!r}: give decode=")


def _image(data: bytes, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    try:
        from interlock.feed.sources._pixels import decode_image  # noqa: PLC0415 - Pillow is an extra
    except ModuleNotFoundError as error:
        raise ValueError("Pillow is not installed: pip install 'interlock[images]'") from error
    return decode_image(data, size)


def _npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array in the bytes of a `.npy` file, without a copy where it is in this machine's order."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("its dtype is object, so it is pickled, and loading a pickle runs code")
    wanted, present = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if present < wanted:
        raise ValueError(f"its header says {wanted} bytes and it holds {present}")
    flat = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    array = flat.reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)
