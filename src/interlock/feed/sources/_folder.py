"""Files of any kind, each a sample."""

from __future__ import annotations

import hashlib
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, final

from interlock.errors import InterlockError, SampleError, SourceError
from interlock.feed.sources._decoders import decode_by_extension
from interlock.feed.sources._files import files_below
from interlock.feed.sources._storage import Storage, as_location, as_locations, join, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@final
class FilesSource:
    """Files as samples: all below a folder, sorted by relative path, or those of a list, in its order.

    Ids are paths relative to the folder; of a list, the paths as they are given, urls without their queries.

    Args:
        files: A folder, the url of one, or a list of files.
        decode: Makes a sample from a file's bytes; called on many threads. Default: by suffix, as `npy`, images, `txt`.
        suffixes: Which files of a folder count, as `[".npy"]`. Default: all that are not hidden.
        image_size: (height, width) that images are resized to where there is no `decode`.

    Raises:
        SourceError: There is no file, or one is listed twice.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        decode: Callable[[bytes], Any] | None = None,
        suffixes: Iterable[str] | None = None,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        self._storage = Storage()
        self._decode = decode
        self._image_size = image_size
        if not isinstance(files, (str, os.PathLike)):
            self._folder = ""
            self._locations: Sequence[str] = as_locations(files)
            self._names: Sequence[str] = [unsigned(one) for one in self._locations]
            if len(set(self._names)) < len(self._names):
                twice = next(one for one in self._names if list(self._names).count(one) > 1)
                raise SourceError(f"file {twice} is listed twice", hint="paths are the ids: list each once")
        else:
            self._folder = as_location(files)
            wanted = None if suffixes is None else frozenset(one.lower() for one in suffixes)
            self._names = files_below(self._folder, wanted).names
        if not self._names:
            raise SourceError(f"there is no file in {files}", hint="check the folder, and suffixes if you gave any")

    def __repr__(self) -> str:
        return f"FilesSource({self._folder or 'a list'!r}, files={len(self)})"

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        """Read and decode one file.

        Raises:
            IndexError: There is no such file.
            SampleError: It cannot be read or decoded.
        """
        if not 0 <= index < len(self._names):
            raise IndexError(index)
        name = self._names[index]
        try:
            data = self._storage.read_new(join(self._folder, name) if self._folder else self._locations[index])
        except OSError as error:
            raise SampleError(
                f"cannot read file {name!r}", index=index, why=error.strerror or str(error), hint="is it still there?"
            ) from error
        try:
            if self._decode is not None:
                return self._decode(data)
            return decode_by_extension(PurePosixPath(name).suffix[1:].lower(), data, self._image_size)
        except InterlockError:
            raise
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise SampleError(
                f"file {name!r} cannot be decoded", index=index, why=why, hint="replace it, or give another decode="
            ) from error

    def id_of(self, index: int) -> str:
        """Return the path of a file, relative to the folder."""
        return self._names[index]

    def fingerprint(self) -> dict[str, Any]:
        """Number of the files and a digest of their names; a file that was mended is still the same sample."""
        return {
            "kind": "files",
            "rows": len(self),
            "image_size": None if self._image_size is None else list(self._image_size),
            "names": hashlib.sha256("\n".join(self._names).encode()).hexdigest(),
        }
