"""Formats: how rows become shards and come back. One a file; each is imported only when a sink names it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock._core._protocols import Sink

_TABLE = {
    "parquet": ("interlock.drain._sinks._parquet", "ParquetSink", "parquet"),
    "arrow": ("interlock.drain._sinks._arrow", "ArrowSink", "parquet"),
    "npy": ("interlock.drain._sinks._npy", "NpySink", ""),
    "safetensors": ("interlock.drain._sinks._safetensors", "SafetensorsSink", ""),
    "zarr": ("interlock.drain._sinks._zarr", "ZarrSink", "zarr"),
    "delta": ("interlock.drain._sinks._delta", "DeltaSink", "delta"),
    "webdataset": ("interlock.drain._sinks._webdataset", "WebDatasetSink", ""),
}
"""Scheme to module, class, and the extra that brings what it needs."""

_PACKAGES = {"pyarrow", "zarr", "deltalake"}
"""What the extras bring."""


def open_sink(text: str) -> tuple[Sink, Path]:
    """Return the format and the folder that `text` names; the folder is not touched.

    Args:
        text: A scheme and a path, as `parquet:PATH`.

    Raises:
        UsageError: There is no such format, its package is not installed, there is no path, or it is a url.
    """
    sink, location = open_format(text)
    if is_url(location):
        raise UsageError(f"sink {text!r} has no folder", why="it is in a remote store")
    return sink, Path(location).expanduser()


def is_url(location: str) -> bool:
    """Tell whether a location is in a remote store: `scheme://…`."""
    return "://" in location


def open_format(text: str) -> tuple[Sink, str]:
    """Return the format and the location that `text` names: a path, or a url of a remote store.

    Raises:
        UsageError: As in `open_sink`.
    """
    scheme, colon, path = str(text).partition(":")
    if scheme == "null" and colon and path:
        raise UsageError(f"sink {text!r} has a path", why="null: keeps nothing", hint="write null: alone, or npy:PATH")
    if scheme == "null" and colon:
        why = "it keeps nothing: rows that a drain is given are counted and forgotten"
        raise UsageError(f"{text} holds no rows", why=why, hint="use parquet:PATH or npy:PATH to keep them")
    if not colon or scheme not in _TABLE:
        choices = ", ".join(f"{name}:PATH" for name in _TABLE)
        raise UsageError(f"no sink is called {text!r}", hint=f"use {choices}, or null: to measure and keep nothing")
    if not path:
        raise UsageError(f"sink {text!r} has no path", hint=f"use {scheme}:PATH")
    module, attribute, extra = _TABLE[scheme]
    try:
        sink: Sink = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise UsageError(f"{package} is not installed", hint=f"pip install 'interlock[{extra}]'") from error
    return sink, path.removeprefix("file://")
