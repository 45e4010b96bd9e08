"""Bytes of an image to RGB pixels: simplejpeg for JPEG where it is installed, else Pillow; the same pixels."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

ORIENTATION = 0x0112
_DEEP_MODES = ("I", "F")
_JPEG_START = b"\xff\xd8"
_EXIF = b"Exif\0\0"
_APP1 = 0xE1
_START_OF_SCAN = 0xDA
_PLAIN_SPACES = frozenset({"YCbCr", "Gray", "RGB"})


def decode_image(data: bytes, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Decode an image.

    The first frame counts; transparency is dropped; the EXIF orientation is honoured; resizing is bilinear.

    Args:
        data: The file.
        size: (height, width) to resize to.

    Returns:
        Shape (height, width, 3).

    Raises:
        Exception: Whatever a decoder raises on a damaged file.
    """
    pixels = _decode_jpeg(data)
    if pixels is None:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith(_DEEP_MODES):
                raise ValueError(f"its pixels are not 8 bits wide (mode {image.mode})")
            upright = ImageOps.exif_transpose(image).convert("RGB")
        return np.asarray(upright if size is None else _resized(upright, size))
    return pixels if size is None or size == pixels.shape[:2] else np.asarray(_resized(Image.fromarray(pixels), size))


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    height, width = size
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _decode_jpeg(data: bytes) -> npt.NDArray[np.uint8] | None:
    """Return the pixels, or None where Pillow is to do it: no JPEG, or one that only Pillow treats right."""
    library = simplejpeg()
    if library is None or not data.startswith(_JPEG_START) or _orientation(data) != 1:
        return None
    try:
        height, width, space, _ = library.decode_jpeg_header(data)
        if space not in _PLAIN_SPACES or height * width > (Image.MAX_IMAGE_PIXELS or height * width):
            return None
        pixels: npt.NDArray[np.uint8] = library.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    except ValueError:  # strict about what Pillow forgives; if it does not either, its message is the one to see
        return None
    return pixels


@cache
def simplejpeg() -> Any:
    """Return the module, or None where it is not installed."""
    try:
        import simplejpeg as module  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return module


def _orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG: 1 where it has none, 0 where it cannot be read."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:  # noqa: PLR2004 - what a marker begins with
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == _START_OF_SCAN:
            break
        segment = data[place + 4 : place + 2 + length]
        if marker == _APP1 and segment.startswith(_EXIF):
            exif = Image.Exif()
            try:
                exif.load(segment)
                return int(exif.get(ORIENTATION, 1))
            except Exception:  # noqa: BLE001 - Pillow raises anything on damaged EXIF, and knows what to do about it
                return 0
        place += 2 + length
    return 1
