"""A folder of images as RGB arrays."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, final

from PIL import Image, UnidentifiedImageError

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed.sources._files import IMAGE_SUFFIXES, files_below
from interlock.feed.sources._pixels import ORIENTATION, decode_image
from interlock.feed.sources._storage import Storage, as_location, join

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

_TRANSPOSING = frozenset({5, 6, 7, 8})


@final
class ImageFolderSource:
    """Images below a folder, sorted by relative path, which is the id; samples are uint8 of shape (height, width, 3).

    The first frame counts; transparency is dropped; the EXIF orientation is honoured; resizing is bilinear. JPEG is
    decoded by simplejpeg where it is installed, else by Pillow, to the same pixels.

    Args:
        folder: A path or url, read with all its subfolders.
        image_size: (height, width) to resize to. Without it the header of every image is read once, to see that their
            sizes agree.

    Raises:
        SourceError: There is no image, or the sizes differ and no `image_size` is given.
        UsageError: `image_size` is not positive.
    """

    def __init__(self, folder: str | os.PathLike[str], *, image_size: tuple[int, int] | None = None) -> None:
        if image_size is not None and min(image_size) < 1:
            raise UsageError(
                f"image size {image_size} is not positive", hint="give --image-size HEIGHT,WIDTH in pixels"
            )
        self._folder = as_location(folder)
        self._storage = Storage()
        found = files_below(self._folder, IMAGE_SUFFIXES)
        self._names = found.names
        self.links_left_out = found.links_left_out
        """Links to images outside the folder; they are not followed."""
        if not self._names:
            raise SourceError(
                f"folder {folder} holds no image", hint=f"suffixes known: {' '.join(sorted(IMAGE_SUFFIXES))}"
            )
        self._resize = image_size is not None
        self._size = image_size or _common_size(self._storage, self._folder, self._names)

    def __repr__(self) -> str:
        return f"ImageFolderSource({self._folder!r}, images={len(self._names)}, image_size={self._size})"

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        """Decode one image.

        Raises:
            IndexError: There is no such image.
            SampleError: It cannot be decoded, or changed its size since the source was opened.
        """
        if not 0 <= index < len(self._names):
            raise IndexError(index)
        name = self._names[index]
        try:
            pixels = self._decode(name)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise SampleError(
                f"image {name!r} in {self._folder} is too large",
                index=index,
                why="Pillow takes so many pixels for a decompression bomb",
                hint="shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it",
            ) from error
        except Exception as error:  # a decoder raises anything on a damaged file
            raise SampleError(
                f"image {name!r} in {self._folder} cannot be decoded",
                index=index,
                why=_one_line(error),
                hint="replace it or take it out of the folder",
            ) from error
        if pixels.shape[:2] != self._size:
            height, width = pixels.shape[:2]
            why = f"it is {height}x{width}, not {self._size[0]}x{self._size[1]}"
            raise SampleError(f"image {name!r} in {self._folder} changed while it was read", index=index, why=why)
        return pixels

    def _decode(self, name: str) -> npt.NDArray[np.uint8]:
        data = self._storage.read_new(join(self._folder, name))
        return decode_image(data, self._size if self._resize else None)

    def id_of(self, index: int) -> str:
        """Return the path relative to the folder, with `/`."""
        return self._names[index]

    def fingerprint(self) -> dict[str, Any]:
        """Number and size of the images, and a digest of the sorted list of their names.

        The bytes are left out: a broken image that was mended is still the same row, and a run can go on with it.
        """
        return {
            "kind": "images",
            "rows": len(self._names),
            "shape": [*self._size, 3],
            "dtype": "uint8",
            "names": hashlib.sha256("\n".join(self._names).encode()).hexdigest(),
        }


def _common_size(storage: Storage, folder: str, names: Iterable[str]) -> tuple[int, int]:
    """Return (height, width) of all images; one whose header cannot be read fails later, at its own sample."""
    first: tuple[str, tuple[int, int]] | None = None
    for name in names:
        size = _size_of(storage, join(folder, name))
        if size is None:
            continue
        if first is None:
            first = name, size
        elif size != first[1]:
            raise SourceError(
                f"the images in {folder} differ in size",
                why=f"{first[0]!r} is {first[1][0]}x{first[1][1]} and {name!r} is {size[0]}x{size[1]} (height x width)",
                hint="give one for all with --image-size HEIGHT,WIDTH",
            )
    if first is None:
        raise SourceError(f"no image in {folder} can be read", hint="check that they are images")
    return first[1]


def _size_of(storage: Storage, location: str) -> tuple[int, int] | None:
    try:
        with storage.open(location) as file, Image.open(file) as image:
            width, height = image.size
            turned = image.getexif().get(ORIENTATION) in _TRANSPOSING
    except Exception:  # noqa: BLE001 - a decoder raises anything on a damaged file; its own sample says it
        return None
    return (width, height) if turned else (height, width)


def _one_line(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image that Pillow knows"
    return " ".join(str(error).split()) or type(error).__name__
