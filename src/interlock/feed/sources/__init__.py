"""Sources: files of many kinds, on this machine or behind a url, mixtures of sources, and objects of a Python file.

`open_source` opens what a text stands for; the classes can be made directly. A class is imported when it is first asked
for, since each stands on packages that others need not have.

Each source of files has `fingerprint()`: plain values that differ when the samples do, so that a resumed run can tell.
No path outside the source is in it: data that moved is the same data. Large content is sampled, see `_digest`; of
images and other single files only the names count.
"""

from __future__ import annotations

import importlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from interlock._core._protocols import Source
from interlock.errors import SourceError, UsageError
from interlock.feed.sources._files import ARROW_SUFFIXES, IMAGE_SUFFIXES, PARQUET_SUFFIXES, files_below
from interlock.feed.sources._python import LoadedObject, load_object, looks_like_object, open_object
from interlock.feed.sources._storage import as_location, is_folder, is_url, unsigned

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from interlock.feed.sources._array_record import ArrayRecordSource
    from interlock.feed.sources._arrow import ArrowSource
    from interlock.feed.sources._folder import FilesSource
    from interlock.feed.sources._images import ImageFolderSource
    from interlock.feed.sources._mixture import Mixture
    from interlock.feed.sources._npy import NpySource
    from interlock.feed.sources._packed import PackedTokens
    from interlock.feed.sources._parquet import ParquetSource
    from interlock.feed.sources._webdataset import WebDatasetSource

__all__ = [
    "ArrayRecordSource",
    "ArrowSource",
    "FileSource",
    "FilesSource",
    "ImageFolderSource",
    "LoadedObject",
    "Mixture",
    "NpySource",
    "PackedTokens",
    "ParquetSource",
    "WebDatasetSource",
    "load_object",
    "open_source",
]

_MODULES = {
    "ArrayRecordSource": "_array_record",
    "ArrowSource": "_arrow",
    "FilesSource": "_folder",
    "ImageFolderSource": "_images",
    "Mixture": "_mixture",
    "NpySource": "_npy",
    "PackedTokens": "_packed",
    "ParquetSource": "_parquet",
    "WebDatasetSource": "_webdataset",
}
_KINDS = (
    "a .npy file, a folder of images, a Parquet file or folder, arrow:FILE, wds:SHARDS, a url of one, or file.py:NAME"
)
_LABELS = {
    "npy": "a .npy file",
    "images": "a folder of images",
    "parquet": "Parquet",
    "arrow": "an Arrow file",
    "wds": "WebDataset shards",
}
_CLASSES = {
    "npy": "NpySource",
    "images": "ImageFolderSource",
    "parquet": "ParquetSource",
    "arrow": "ArrowSource",
    "wds": "WebDatasetSource",
}
_OPTIONS = {
    "npy": frozenset[str](),
    "images": frozenset({"image_size"}),
    "parquet": frozenset({"columns", "id_column"}),
    "arrow": frozenset({"columns", "id_column"}),
    "wds": frozenset({"columns", "image_size"}),
}
_EXTRAS = {"PIL": "images", "pyarrow": "parquet", "fsspec": "remote", "array_record": "array-record"}


def __getattr__(name: str) -> Any:
    """Import a kind of source when it is asked for.

    Raises:
        AttributeError: There is no such kind.
        UsageError: An extra that it needs is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(f"{error.name} is not installed", hint=f"pip install 'interlock[{extra}]'") from error


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
        text: Path or url of a `.npy` file, a folder of images, a Parquet file or folder, an Arrow or Feather file or a
            tar shard; or `arrow:FILE`, `wds:SHARDS` (as in `wds:train-{000..146}.tar`); or `file.py:NAME` or
            `package.module:NAME`, a source, or a callable without arguments that returns one.
        image_size: (height, width) in pixels that images are resized to. Only needed if their sizes differ.
        columns: Columns of Parquet or Arrow, or extensions of shards, that make a sample. Default: every numeric one.
        id_column: Column of Parquet or Arrow that names the rows. Default: the row number.

    Raises:
        SourceError: It is not there, not readable, empty, or not what it should be.
        UsageError: An option does not fit the kind of source, or an extra is not installed.
    """
    name = as_location(text)
    options = {"image_size": image_size, "columns": columns, "id_column": id_column}
    scheme, _, rest = name.partition(":")
    if scheme in {"wds", "arrow"} and rest and not rest.startswith("//"):
        return _make(scheme, name, as_location(rest), options)
    if not is_url(name) and not Path(name).exists():
        if looks_like_object(name):
            _refuse_options(name, "an object of a Python file", options)
            return open_object(name)
        raise SourceError(f"there is no source {name!r}", why="no such file or folder", hint=f"give {_KINDS}")
    kind = _kind_of(name, parquet=columns is not None or id_column is not None, images=image_size is not None)
    return _make(kind, name, name, options)


def _make(kind: str, name: str, location: str, options: dict[str, Any]) -> FileSource:
    _refuse_options(name, _LABELS[kind], {key: options[key] for key in options.keys() - _OPTIONS[kind]})
    taken = {key: options[key] for key in _OPTIONS[kind]}
    if kind == "wds":
        taken["extensions"] = taken.pop("columns")
    source: FileSource = __getattr__(_CLASSES[kind])(location, **taken)
    return source


def _refuse_options(name: str, kind: str, options: dict[str, Any]) -> None:
    for option, value in sorted(options.items()):
        if value is not None:
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag} does not go with source {name!r}", why=f"it is {kind}", hint=f"leave {flag} out")


def _kind_of(location: str, *, parquet: bool, images: bool) -> str:
    suffix = PurePosixPath(unsigned(location)).suffix.lower()
    kinds = {".npy": "npy", ".tar": "wds"} | dict.fromkeys(PARQUET_SUFFIXES, "parquet")
    kinds |= dict.fromkeys(ARROW_SUFFIXES, "arrow")
    if is_folder(location):
        return _kind_of_folder(location, parquet=parquet, images=images)
    if suffix in kinds:
        return kinds[suffix]
    if suffix in IMAGE_SUFFIXES:
        hint = f"give the folder that it is in: {location.rpartition('/')[0] or '.'}"
    elif suffix == ".npz":
        hint = "save one array with numpy.save"
    elif suffix == ".py":
        hint = f"say what in it is the source: {location}:NAME"
    else:
        hint = f"give {_KINDS}"
    raise SourceError(
        f"{location} is not a source", why=f"its suffix is {suffix!r}" if suffix else "it has no suffix", hint=hint
    )


def _kind_of_folder(folder: str, *, parquet: bool, images: bool) -> str:
    """Return what the folder holds; an option of one kind decides if it holds both."""
    found = files_below(folder, PARQUET_SUFFIXES | IMAGE_SUFFIXES)
    kinds = {"parquet" if Path(name).suffix.lower() in PARQUET_SUFFIXES else "images" for name in found.names}
    if len(kinds) == 1:
        return kinds.pop()
    if not kinds:
        why = f"{found.links_left_out} links in it lead outside and are not followed" if found.links_left_out else ""
        raise SourceError(f"folder {folder} holds no image and no Parquet file", why=why, hint=f"give {_KINDS}")
    if parquet != images:
        return "parquet" if parquet else "images"
    raise SourceError(
        f"folder {folder} holds both images and Parquet files", hint="give the folder that holds only one kind"
    )
