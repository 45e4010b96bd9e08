"""Folders of `.npy` files: `id.npy`, one file per output, and `shard.json`, which says what there must be.

A ragged output is two files: `NAME.values.npy` and `NAME.offsets.npy`.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN
from interlock.drain._shardfile import ShardFile
from interlock.drain._sinks._flat import Flattened, read_columns
from interlock.drain._times import writing
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows

_INDEX = "shard.json"
_WRITE_BYTES = 8 << 20
_BUFFER_BYTES = 128 << 10
"""Larger writes go straight to the system: gathering them would cost a copy."""
_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, EOFError, OverflowError, RecursionError)
_FORBIDDEN = frozenset('/\\:*?"<>|\0')


@final
class NpySink:
    """One folder per shard."""

    scheme = "npy"
    suffix = ""
    ragged = True
    index = _INDEX

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:  # noqa: ARG002 - it holds any id
        """As in `SupportsLimits`."""
        for name in names:
            _check_name(f"{name}.npy")

    def open_shard(self, path: Path, *, run: str) -> _NpyShard:
        """As in `Sink`."""
        path.mkdir()
        return _NpyShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: also checks that every file is there with its size."""
        try:
            index = json.loads((path / _INDEX).read_bytes())
            for name, size_bytes in index["files"].items():
                _check_name(name)
                _require((path / name).stat().st_size == size_bytes, f"{name} does not have {size_bytes:,} bytes")
            ids = np.load(path / f"{ID_COLUMN}.npy", allow_pickle=False)
            is_fit = ids.shape == (index["rows"],) and ids.dtype.kind in "iU"
            _require(is_fit, f"its ids are {ids.dtype} of shape {ids.shape}")
            return ShardContent(str(index["run"]), ids.astype(np.int64, copy=False) if ids.dtype.kind == "i" else ids)
        except (*_DAMAGES, FileNotFoundError) as error:
            raise UsageError(f"{path} is no whole shard of ours", why=str(error)) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: maps the files and copies the rows."""
        wanted = np.asarray(positions, np.int64)
        try:
            index = json.loads((path / _INDEX).read_bytes())
            for name in index["files"]:
                _check_name(name)
            names = [name.removesuffix(".npy") for name in index["files"] if name != f"{ID_COLUMN}.npy"]

            def array_of(name: str) -> npt.NDArray[Any]:
                return _map(path / f"{name}.npy")

            ragged = index.get("ragged", ())
            return read_columns(names, ragged, wanted, lambda name: array_of(name)[wanted], array_of)
        except _DAMAGES as error:
            raise UsageError(f"{path} is no whole shard of ours", why=str(error)) from error


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise ValueError(what)


def _map(path: Path) -> npt.NDArray[Any]:
    with suppress(ValueError):  # what has no bytes cannot be mapped
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    loaded: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    return loaded


def _check_name(name: str) -> None:
    if not name or name.startswith(".") or not _FORBIDDEN.isdisjoint(name):
        raise UsageError(
            f"output {name.removesuffix('.npy')!r} cannot be a file name",
            hint="name outputs without slashes, colons, wildcards or a leading dot",
        )


@final
class _Column:
    """A `.npy` file that grows.

    NumPy's header leaves room for a longer row count, so it is written again at the end.
    """

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._file = file
        self._dtype = dtype
        self._row_shape = row_shape
        self._rows = 0
        self._size_bytes = self._file.write(self._header())
        self._begun_bytes = 0

    def append(self, rows: npt.NDArray[Any]) -> None:
        if rows.size:
            content = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8)
            for start in range(0, len(content), _WRITE_BYTES):
                self._write(content[start : start + _WRITE_BYTES])
        self._rows += len(rows)

    def _write(self, content: npt.NDArray[np.uint8]) -> None:
        """Write, and have the system begin to bring it to the storage: so syncing finds little left to do."""
        self._file.write(content.data)
        self._size_bytes += content.size
        size_bytes = self._size_bytes - self._begun_bytes
        if size_bytes >= _WRITE_BYTES and hasattr(os, "posix_fadvise"):
            self._file.flush()
            with suppress(OSError), writing():  # it is advice
                os.posix_fadvise(self._file.fileno(), self._begun_bytes, size_bytes, os.POSIX_FADV_DONTNEED)
            self._begun_bytes = self._size_bytes

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _header(self) -> bytes:
        header = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(self._dtype)
        shape = (self._rows, *self._row_shape)
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        return header.getvalue()


@final
class _NpyShard:
    """A folder being written. Ids are kept until `close`, since the longest decides the dtype of strings."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._ids: list[npt.NDArray[Any]] = []
        self._columns: dict[str, _Column] = {}
        self._flattened = Flattened()

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """As in `ShardWriter`."""
        for name, column in self._flattened.arrays(columns).items():
            if name not in self._columns:
                _check_name(f"{name}.npy")
                dtype = column.dtype.newbyteorder("=")
                file = ShardFile(self._path / f"{name}.npy")
                self._columns[name] = _Column(io.BufferedWriter(file, _BUFFER_BYTES), dtype, column.shape[1:])
            self._columns[name].append(column)
        self._ids.append(np.array(ids))

    def close(self) -> None:
        """As in `ShardWriter`."""
        for column in self._columns.values():
            column.close()
        ids = np.concatenate(self._ids)
        np.save(self._path / f"{ID_COLUMN}.npy", ids, allow_pickle=False)
        names = [ID_COLUMN, *self._columns]
        sizes = {f"{name}.npy": (self._path / f"{name}.npy").stat().st_size for name in names}
        index = {"run": self._run, "rows": len(ids), "files": sizes, "ragged": self._flattened.ragged}
        (self._path / _INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        for column in self._columns.values():
            column.abandon()
