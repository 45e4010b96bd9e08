"""Which files a folder holds, in an order that every run and every machine agrees on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from interlock.errors import SourceError
from interlock.feed.sources._storage import is_url, remote_files_below

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
PARQUET_SUFFIXES = frozenset({".parquet", ".parq", ".pq"})
ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".ipc", ".arrows"})


@dataclass(frozen=True, slots=True)
class Found:
    """What `files_below` found.

    Attributes:
        names: Paths relative to the folder, with `/`, sorted.
        links_left_out: Number of links to files outside the folder.
    """

    names: tuple[str, ...]
    links_left_out: int


def files_below(location: str, suffixes: frozenset[str] | None) -> Found:
    """List the files below a folder with one of `suffixes` (lower case; compared without case); None for any.

    Names that start with `.` are hidden, files and folders alike; for Parquet those with `_` too, as for every reader
    of Parquet datasets. Links to folders are not entered; links to files count if they stay inside.

    Raises:
        SourceError: The folder or one below it cannot be listed, or a name is not text.
    """
    if is_url(location):
        remote = [name for name in remote_files_below(location) if _is_meant(PurePosixPath(name), suffixes)]
        return Found(tuple(remote), 0)
    folder = Path(location)
    root = Path(os.path.realpath(folder))
    names: list[str] = []
    links_left_out = 0
    for parent, folders, files in os.walk(root, onerror=_refuse_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            relative = path.relative_to(root)
            if name.startswith(".") or not _is_meant(relative, suffixes):
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                links_left_out += 1
                continue
            names.append(_as_text(relative.as_posix(), folder))
    return Found(tuple(sorted(names)), links_left_out)


def _is_meant(name: PurePath, suffixes: frozenset[str] | None) -> bool:
    suffix = name.suffix.lower()
    if suffixes is not None and suffix not in suffixes:
        return False
    return suffix not in PARQUET_SUFFIXES or not any(part.startswith("_") for part in name.parts)


def _refuse_unreadable(error: OSError) -> None:
    raise SourceError(
        f"cannot list {error.filename}", why=error.strerror or str(error), hint="check its permissions"
    ) from error


def _as_text(name: str, folder: Path) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the name {name!r} in {folder} is not UTF-8", hint="rename it: names are the ids") from error
    return name
