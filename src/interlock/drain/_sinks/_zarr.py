"""Zarr groups of version 3: the ids are the coordinate `id`, and each output is an array along it.

A ragged output is two arrays along axes of their own: `NAME.values` and `NAME.offsets`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt
import zarr
from zarr.errors import NodeNotFoundError
from zarr.storage import LocalStore

from interlock._core._protocols import ShardContent
from interlock.drain._files import files_of
from interlock.drain._schema import ID_COLUMN
from interlock.drain._sinks._flat import Flattened, read_columns
from interlock.drain._times import count_as_writing
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows

_KEY = "interlock"
_METADATA = "zarr.json"
_CHUNK_BYTES = 8 << 20
_LARGE_ROW_BYTES = 2 * _CHUNK_BYTES
"""A row of more is cut into chunks: along its first axis, then along the next."""

_FORBIDDEN = frozenset('/\\:*?"<>|\0')
_DAMAGES = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, FileNotFoundError, NodeNotFoundError),
    *(OverflowError, RuntimeError),  # what codecs raise, and JSON that is nested too deep
)


@final
class ZarrSink:
    """One group per shard. Its attributes say whose it is and which files there must be."""

    scheme = "zarr"
    suffix = ".zarr"
    index = _METADATA
    dtypes: frozenset[str] = frozenset()
    ragged = True

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:  # noqa: ARG002 - it holds any id
        """As in `SupportsLimits`."""
        for name in names:
            _check_name(name)

    def open_shard(self, path: Path, *, run: str) -> _ZarrShard:
        """As in `Sink`."""
        return _ZarrShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: also checks that every file is there with its size."""
        try:
            group = _group(path)
            told: Any = group.attrs[_KEY]
            for name, size_bytes in told["files"].items():
                _require((path / _inside(name)).stat().st_size == size_bytes, f"{name} has not {size_bytes:,} bytes")
            ids: Any = _array(group, ID_COLUMN)[:]
            ids = np.array(ids.tolist(), np.str_) if ids.dtype.kind in "OT" else np.array(ids)
            _require(ids.shape == (told["rows"],) and ids.dtype.kind in "iU", f"its ids are {ids.dtype} {ids.shape}")
            return ShardContent(str(told["run"]), ids.astype(np.int64, copy=False) if ids.dtype.kind == "i" else ids)
        except _DAMAGES as error:
            raise _damaged(path, error) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: reads the chunks that hold the positions."""
        wanted = np.asarray(positions, np.int64)
        unique, places = np.unique(wanted, return_inverse=True)
        try:
            group = _group(path)
            ragged: Any = group.attrs[_KEY]
            names = [name for name in group if name != ID_COLUMN]

            def rows_of(name: str) -> npt.NDArray[Any]:
                return np.asarray(_array(group, name).oindex[(unique,)])[places]

            return read_columns(names, ragged.get("ragged", ()), wanted, rows_of, partial(_array, group))
        except _DAMAGES as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is no whole Zarr group of ours", why=str(error) or type(error).__name__)


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise ValueError(what)


def _inside(name: str) -> str:
    """Return a file's name as it is in the attributes, if it leads to a place in the group."""
    parts = PurePosixPath(name).parts
    _require(bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name, f"it names {name!r}")
    return name


def _check_name(name: str) -> None:
    is_kept = name.startswith(("__", ".")) or name == _METADATA
    if not name or is_kept or not _FORBIDDEN.isdisjoint(name):
        raise UsageError(
            f"output {name!r} cannot be the name of a Zarr array",
            hint="name outputs without slashes, colons, wildcards, a leading dot or two leading underscores",
        )


def _group(path: Path) -> Any:
    return zarr.open_group(str(path), mode="r", zarr_format=3)


def _array(group: Any, name: str) -> Any:
    array = group[name]
    _require(isinstance(array, zarr.Array), f"{name} is no array")
    return array


@final
class _Column:
    """An array that grows by whole chunks, but for the last; one that ends before its first is full has a smaller one.

    Codecs see whole chunks: what is missing from the last one takes its place on the storage too.
    """

    def __init__(self, group: Any, name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...], axis: str) -> None:
        self._group = group
        self._name = name
        self._dtype = dtype
        self._row_shape = row_shape
        self._axis = axis
        self._chunk_rows = max(1, _CHUNK_BYTES // (math.prod(row_shape) * dtype.itemsize))
        self._array: Any = None
        self._held: npt.NDArray[Any] | None = None
        self._held_rows = 0
        self._rows = 0

    def _make(self, chunk_rows: int) -> Any:
        dtype, name, row_shape = self._dtype, self._name, self._row_shape
        return self._group.create_array(
            name,
            shape=(0, *row_shape),
            chunks=(chunk_rows, *_cut(row_shape, dtype.itemsize)),
            dtype=dtype,
            # The low bits of floats are noise, which no codec shrinks.
            compressors=None if dtype.kind == "f" else "auto",
            # A chunk that is lost reads as this: it should not look like a value that a model gives.
            fill_value=np.nan if dtype.kind == "f" else 0,
            dimension_names=(self._axis, *(f"{name}.axis{axis}" for axis in range(1, 1 + len(row_shape)))),
            config={"write_empty_chunks": True},
        )

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Take rows. Copies: only those that fill no chunk."""
        start = 0
        while start < len(rows):
            if not self._held_rows and len(rows) - start >= self._chunk_rows:
                stop = len(rows) - (len(rows) - start) % self._chunk_rows
                self._write(np.ascontiguousarray(rows[start:stop], self._dtype))
            else:
                stop = min(len(rows), start + self._chunk_rows - self._held_rows)
                self._hold(rows[start:stop])
            start = stop

    def _hold(self, rows: npt.NDArray[Any]) -> None:
        if self._held is None:
            self._held = np.empty((self._chunk_rows, *rows.shape[1:]), self._dtype)
        self._held[self._held_rows : self._held_rows + len(rows)] = rows
        self._held_rows += len(rows)
        if self._held_rows == self._chunk_rows:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held; if there never were any, an array of none."""
        if self._held is not None and self._held_rows:
            self._write(self._held[: self._held_rows])
            self._held_rows = 0
        if self._array is None:
            self._array = self._make(self._chunk_rows)

    def _write(self, rows: npt.NDArray[Any]) -> None:
        if self._array is None:
            self._array = self._make(min(self._chunk_rows, len(rows)))
        start, self._rows = self._rows, self._rows + len(rows)
        self._array.resize((self._rows, *rows.shape[1:]))
        self._array[start : self._rows] = rows


def _cut(row_shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the part of a row that a chunk holds: all, unless the row is large."""
    cut = list(row_shape)
    if math.prod(cut) * itemsize > _LARGE_ROW_BYTES:
        for axis in range(len(cut)):
            inner_bytes = math.prod(cut[axis + 1 :]) * itemsize
            cut[axis] = max(1, min(cut[axis], _CHUNK_BYTES // inner_bytes))
            if inner_bytes <= _CHUNK_BYTES:
                break
    return tuple(cut)


@final
class _Writes:
    """Times writes that threads of zarr make, several at once: the seconds in which there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since_s = 0.0
        self._seconds = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the time inside."""
        with self._lock:
            if not self._running:
                self._since_s = time.perf_counter()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._seconds += time.perf_counter() - self._since_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the writes of the block, which waits for them, as writing of the calling thread."""
        before_s = self._seconds
        try:
            yield
        finally:
            count_as_writing(self._seconds - before_s)


async def _apart(action: Callable[[], None]) -> None:
    """Await something that blocks, on a thread of its own: those of zarr's pool are waited for at exit, if it hangs."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not ended.done():  # nobody waits any more
            ended.set_result(None) if error is None else ended.set_exception(error)

    def run() -> None:
        failure = None
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the interpreter ends
            loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=run, name="interlock-drain zarr", daemon=True).start()
    await ended


@final
class _Folder(LocalStore):
    """A folder whose writes are timed, and hold up no exit."""

    def __init__(self, root: Path, writes: _Writes, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self._writes = writes

    def with_read_only(self, read_only: bool = False) -> _Folder:  # noqa: FBT001, FBT002 - as in zarr
        """As in zarr."""
        return _Folder(self.root, self._writes, read_only=read_only)

    async def set(self, key: str, value: Any) -> None:
        """As in zarr."""
        with self._writes.one():
            if hasattr(LocalStore, "set_sync"):  # not in all versions
                await _apart(partial(super().set_sync, key, value))
            else:
                await super().set(key, value)

    def set_sync(self, key: str, value: Any) -> None:
        """As in zarr, which calls it in place of `set` in some versions."""
        with self._writes.one():
            super().set_sync(key, value)


@final
class _ZarrShard:
    """A group being written. Its attributes come last: without them it never passes for whole."""

    def __init__(self, path: Path, run: str) -> None:
        path.mkdir()
        self._path = path
        self._run = run
        self._writes = _Writes()
        self._group: Any = zarr.create_group(_Folder(path, self._writes), zarr_format=3)
        self._ids: list[npt.NDArray[Any]] = []
        self._columns: dict[str, _Column] = {}
        self._flattened = Flattened()

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """As in `ShardWriter`."""
        for name, column in self._flattened.arrays(columns).items():
            if name not in self._columns:
                _check_name(name)
                dtype = column.dtype.newbyteorder("=")
                axis = ID_COLUMN if self._flattened.is_along_rows(name) else f"{name}.axis0"
                self._columns[name] = _Column(self._group, name, dtype, column.shape[1:], axis)
            with self._writes.counted():
                self._columns[name].append(column)
        self._ids.append(np.array(ids))

    def close(self) -> None:
        """As in `ShardWriter`."""
        with self._writes.counted():
            self._close()

    def _close(self) -> None:
        for column in self._columns.values():
            column.flush()
        ids = np.concatenate(self._ids)
        is_text = ids.dtype.kind == "U"
        array = self._group.create_array(
            ID_COLUMN,
            shape=ids.shape,
            chunks=ids.shape,
            dtype=str if is_text else np.int64,
            dimension_names=(ID_COLUMN,),
            config={"write_empty_chunks": True},
        )
        array[:] = ids
        files = {file.relative_to(self._path).as_posix(): file.stat().st_size for file in files_of(self._path)}
        del files[_METADATA]  # it is about to hold this
        told = {"run": self._run, "rows": len(ids), "files": files, "ragged": self._flattened.ragged}
        self._group.update_attributes({_KEY: told})

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        self._columns = {}
