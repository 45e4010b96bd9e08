"""Bytes of files: local ones by path, remote ones by url through fsspec."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, final

from interlock._urls import masked, opened
from interlock.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_OPEN = 64
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "modified", "created")
"""What file systems call the mark that changes with the content, best first."""


def is_url(location: str | os.PathLike[str]) -> bool:
    """Tell whether `location` goes through fsspec: `scheme://…`, save `file://`."""
    return "://" in str(location) and not str(location).startswith("file://")


def as_location(location: str | os.PathLike[str]) -> str:
    """Return a local path or a url; `file://` urls become paths, so that they need no fsspec."""
    return os.fspath(location).removeprefix("file://")


def as_locations(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the locations of one file or of a list of them."""
    return [as_location(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]


def unsigned(location: str) -> str:
    """Return a url without its query, which may be a signature that is new in every run; a path as it is."""
    return location.partition("?")[0] if is_url(location) else location


def join(folder: str, name: str) -> str:
    """Return the location of the file `name` below `folder`."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder, name))


@final
@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells whether a file changed.

    Attributes:
        size_bytes: Its size.
        version: Time of its last change in ns, or what its file system has for that; may be empty.
    """

    size_bytes: int
    version: str


@final
class Storage:
    """Reads files at any offset, on any number of threads. Keeps the 64 local files used last open.

    A file is opened when it is first read. A copy that was pickled has no open files. All errors are `OSError`, save
    that fsspec is missing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Handle] = OrderedDict()

    def __reduce__(self) -> tuple[type[Storage], tuple[()]]:
        return Storage, ()

    def read(self, location: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `offset` on; None for all that follow.

        Raises:
            OSError: They cannot be read, or the file ends before.
            UsageError: It is remote, and fsspec or what it needs for the scheme is not installed.
        """
        if size is None:
            size = max(0, self.stamp(location).size_bytes - offset)
        if not is_url(location):
            handle = self._handle(location)
            whole = os.pread(handle.descriptor, size, offset)
            if len(whole) == size:
                return whole
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self.read_into(location, offset + done, view[done:])
            if not count:
                raise OSError(f"it ends at byte {offset + done}, before byte {offset + size}")
            done += count
        return bytes(data)

    def read_new(self, location: str) -> bytes:
        """Return the whole file as it is now; it does not stay open.

        Raises:
            OSError: It cannot be read.
            UsageError: As `read` does.
        """
        if not is_url(location):
            return Path(location).read_bytes()
        system, path = _remote(location)
        with _as_os_error():
            data: bytes = system.cat_file(path)
        return data

    def read_into(self, location: str, offset: int, view: memoryview) -> int:
        """Fill the front of `view` from `offset` on; return how many bytes came, 0 at the end of the file.

        Raises:
            OSError: It cannot be read.
            UsageError: As `read` does.
        """
        if not is_url(location):
            handle = self._handle(
                location
            )  # held until the read is done: else its number may be another file's by then
            return os.preadv(handle.descriptor, [view], offset)
        system, path = _remote(location)
        with _as_os_error():
            data = system.cat_file(path, start=offset, end=offset + len(view))
        if len(data) > len(view):
            raise OSError(f"it gave {len(data)} bytes where {len(view)} were asked for: it has no random access")
        view[: len(data)] = data
        return len(data)

    def stamp(self, location: str) -> Stamp:
        """Return size and version.

        Raises:
            OSError: There is no such file, or its size is not known.
            UsageError: As `read` does.
        """
        if not is_url(location):
            handle = self._handle(location)
            status = os.fstat(handle.descriptor)
            return Stamp(status.st_size, str(status.st_mtime_ns))
        system, path = _remote(location)
        with _as_os_error():
            info = system.info(path)
        if info.get("size") is None:
            raise OSError("its size is not known, so it has no random access")
        return Stamp(int(info["size"]), next((str(info[name]) for name in _VERSIONS if info.get(name)), ""))

    def open(self, location: str) -> BinaryIO:
        """Return a file object of its own position, for libraries that want one; close it.

        Raises:
            OSError: It cannot be opened.
            UsageError: As `read` does.
        """
        if not is_url(location):
            return Path(location).open("rb")
        system, path = _remote(location)
        with _as_os_error():
            file: BinaryIO = system.open(path, "rb")
        return file

    def _handle(self, path: str) -> _Handle:
        with self._lock:
            handle = self._open.get(path)
            if handle is None:
                handle = self._open[path] = _Handle(path)
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(path)
            return handle


@final
class _Handle:
    """An open file; closed when the last thread that reads it, and the storage, have let go."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self.descriptor)


class _as_os_error:  # noqa: N801 - a context manager that reads as a verb
    """Turn what fsspec and the clients under it raise into `OSError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (OSError, UsageError)):
            raise OSError(f"{type(error).__name__}: {masked(str(error))}") from error


def _remote(location: str) -> tuple[Any, str]:
    """Return the file system of a url and the path in it."""
    return opened(location, "read")


def is_folder(location: str) -> bool:
    """Tell whether there is a folder at `location`; of `https://` urls, those are that end in `/`.

    Raises:
        UsageError: As `Storage.read` does.
    """
    if not is_url(location):
        return Path(location).is_dir()
    if location.startswith(("http://", "https://")):
        return location.endswith("/")  # to find out, fsspec would load the file and look for links in it
    system, path = _remote(location)
    return bool(system.isdir(path))


def remote_files_below(folder: str) -> list[str]:
    """Return the names of all files below a url, relative to it, with `/`, sorted; no hidden ones.

    Raises:
        SourceError: It cannot be listed.
        UsageError: As `Storage.read` does.
    """
    system, path = _remote(folder)
    root = path.rstrip("/")
    try:
        found = system.find(path)
    except Exception as error:  # clients of remote storage raise anything
        raise SourceError(f"cannot list {folder}", why=str(error), hint="check the url and who may read it") from error
    return sorted(_visible(str(one).removeprefix(root).lstrip("/") for one in found))


def _visible(names: Iterator[str]) -> Iterator[str]:
    for name in names:
        if name and not any(part.startswith(".") for part in name.split("/")):
            yield name


def matching(pattern: str) -> list[str]:
    """Return the files that a pattern with `*`, `?` or `[…]` stands for, sorted.

    Raises:
        UsageError: As `Storage.read` does.
    """
    if is_url(pattern):
        system, path = _remote(pattern)
        return sorted(str(system.unstrip_protocol(one)) for one in system.glob(path))
    import glob  # noqa: PLC0415 - seldom used

    return sorted(glob.glob(pattern))  # noqa: PTH207 - pathlib cannot glob an absolute pattern
