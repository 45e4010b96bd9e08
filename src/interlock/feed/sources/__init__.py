"""Sources that a file, a folder or a name stands for: `.npy`, images, Parquet, and objects of a Python file.

Each has `fingerprint()`: plain values that differ when the samples do, so that a resumed run can tell. No path outside
the source is in it: data that moved is the same data. Large content is sampled, see `_digest`; of images only the names
count.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from interlock._core._protocols import Source
from interlock.errors import SourceError, UsageError
from interlock.feed.sources._files import IMAGE_SUFFIXES, PARQUET_SUFFIXES, files_below
from interlock.feed.sources._python import LoadedObject, load_object, looks_like_object, open_object

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["FileSource", "LoadedObject", "load_object", "open_source"]

_KINDS = "a .npy file, a folder of images, a Parquet file or folder, or file.py:NAME"
_LABELS = {"npy": "a .npy file", "images": "a folder of images"}
_EXTRAS = {"PIL": "images", "pyarrow": "parquet"}


class FileSource(Source, Protocol):
    """A source that can say what it holds."""

    def fingerprint(self) -> dict[str, Any]:
        """Return plain JSON values that differ when the samples do."""
        ...


def open_source(
    text: str | os.PathLike[str],
    *,
    image_size: tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
    id_column: str | None = None,
) -> FileSource:
    """Open the source that `text` names.

    Args:
        text: Path of a `.npy` file, a folder of images, a Parquet file or folder; or `file.py:NAME` or
            `package.module:NAME`, a source, or a callable without arguments that returns one.
        image_size: (height, width) in pixels that images are resized to. Only needed if their sizes differ.
        columns: Parquet columns that make a sample. Default: every numeric one.
        id_column: Parquet column that names the rows. Default: the row number.

    Raises:
        SourceError: It is not there, not readable, empty, or not what it should be.
        UsageError: An option does not fit the kind of source, or an extra is not installed.
    """
    name = str(text)
    path = Path(name)
    if not path.exists():
        if looks_like_object(name):
            _refuse_options(
                name, "an object of a Python file", image_size=image_size, columns=columns, id_column=id_column
            )
            return open_object(name)
        raise SourceError(f"there is no source {name!r}", why="no such file or folder", hint=f"give {_KINDS}")
    kind = _kind_of(path, parquet=columns is not None or id_column is not None, images=image_size is not None)
    if kind == "parquet":
        _refuse_options(name, "Parquet", image_size=image_size)
        return _make("_parquet", "ParquetSource", path, columns=columns, id_column=id_column)
    _refuse_options(name, _LABELS[kind], columns=columns, id_column=id_column)
    if kind == "images":
        return _make("_images", "ImageFolderSource", path, image_size=image_size)
    _refuse_options(name, _LABELS[kind], image_size=image_size)
    return _make("_npy", "NpySource", path)


def _make(module: str, name: str, path: Path, **options: Any) -> FileSource:
    """Import a kind of source when it is asked for: each stands on a package that others need not have."""
    try:
        kind = getattr(importlib.import_module(f"interlock.feed.sources.{module}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(f"{error.name} is not installed", hint=f"pip install 'interlock[{extra}]'") from error
    source: FileSource = kind(path, **options)
    return source


def _refuse_options(name: str, kind: str, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag} does not go with source {name!r}", why=f"it is {kind}", hint=f"leave {flag} out")


def _kind_of(path: Path, *, parquet: bool, images: bool) -> str:
    if path.is_dir():
        return _kind_of_folder(path, parquet=parquet, images=images)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return "npy"
    if suffix in PARQUET_SUFFIXES:
        return "parquet"
    if suffix in IMAGE_SUFFIXES:
        hint = f"give the folder that it is in: {path.parent}"
    elif suffix == ".npz":
        hint = "save one array with numpy.save"
    elif suffix == ".py":
        hint = f"say what in it is the source: {path}:NAME"
    else:
        hint = f"give {_KINDS}"
    raise SourceError(
        f"{path} is not a source", why=f"its suffix is {suffix!r}" if suffix else "it has no suffix", hint=hint
    )


def _kind_of_folder(path: Path, *, parquet: bool, images: bool) -> str:
    """Return what the folder holds; an option of one kind decides if it holds both."""
    found = files_below(path, PARQUET_SUFFIXES | IMAGE_SUFFIXES)
    kinds = {"parquet" if Path(name).suffix.lower() in PARQUET_SUFFIXES else "images" for name in found.names}
    if len(kinds) == 1:
        return kinds.pop()
    if not kinds:
        why = f"{found.links_left_out} links in it lead outside and are not followed" if found.links_left_out else ""
        raise SourceError(f"folder {path} holds no image and no Parquet file", why=why, hint=f"give {_KINDS}")
    if parquet != images:
        return "parquet" if parquet else "images"
    raise SourceError(
        f"folder {path} holds both images and Parquet files", hint="give the folder that holds only one kind"
    )
