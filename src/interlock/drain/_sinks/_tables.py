"""Rows as Arrow tables and back: a column `id` and one per output.

Vectors are lists of a fixed size. So are rows of higher rank, under a type that says their shape (Arrow's
`fixed_shape_tensor`): lists in lists cost Parquet a third to two thirds more time, and most readers an object for each.
Where that type does not exist, they are lists in lists. Ragged rows are lists of any length.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from interlock._core._rows import RaggedRows
from interlock.drain._schema import ID_COLUMN
from interlock.drain._shardfile import ShardFile
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from interlock._core._rows import Rows

RUN_KEY = b"interlock.run"
_GATHER_BYTES = 8 << 20
"""Size of a row group or record batch before encoding; smaller writes are gathered until they make one."""

_TEXTS = 1 << 16
_LARGE_ROW_BYTES = 64 << 20

_VECTORS = 2
"""Axes of rows that are vectors."""

_MOST_VALUES = 2**31 - 1
"""Values in the lists of one array: their offsets have 32 bits."""


@final
class Gathered:
    """Writes on their way to a file, in pieces of some megabytes."""

    def __init__(self, *, tensors: bool) -> None:
        self._tensors = tensors
        self._tables: list[pa.Table] = []
        self._size_bytes = 0

    def add(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> Iterator[tuple[pa.Table, int]]:
        """Take rows; yield each table that is to be written now, and how many rows of it go together.

        A table may lie over the memory of the arrays, and must be written before the next one is asked for.

        Copies: only writes that are too small for a piece of their own.
        """
        size_bytes = ids.nbytes + sum(column.nbytes for column in columns.values())
        if size_bytes >= _GATHER_BYTES:
            yield from self.rest()
            for some, part in _within_lists(ids, columns):
                table = to_arrow(some, part, copy=False, tensors=self._tensors)
                yield table, max(1, _GATHER_BYTES * len(ids) // size_bytes)
            return
        self._tables.append(to_arrow(ids, columns, copy=True, tensors=self._tensors))
        self._size_bytes += size_bytes
        if self._size_bytes >= _GATHER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[pa.Table, int]]:
        """Yield what was gathered so far."""
        if self._tables:
            table = pa.concat_tables(self._tables)
            self.forget()
            yield table, table.num_rows

    def forget(self) -> None:
        """Let go of what was gathered."""
        self._tables, self._size_bytes = [], 0


@final
class TableShard:
    """A file being written, one row group or record batch after the other.

    Args:
        path: Of the file.
        run: The run, for the metadata of the schema.
        start: Returns a writer of the format for an open file and a schema.
        give_up: Lets go of a writer whose file was closed, if it does not let go by itself. Without its footer, what is
            there never passes for whole.
        tensors: Whether the format has Arrow's type for tensors.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        start: Callable[[Any, pa.Schema], Any],
        give_up: Callable[[Any], object] | None = None,
        *,
        tensors: bool = True,
    ) -> None:
        self._run = run
        self._path = path
        self._file: Any = pa.PythonFile(ShardFile(path), "w")
        self._start = start
        self._give_up = give_up
        self._writer: Any = None
        self._gathered = Gathered(tensors=tensors)

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """As in `ShardWriter`. Copies: only writes that are too small for a piece of their own."""
        self._write(self._gathered.add(ids, columns))

    def close(self) -> None:
        """As in `ShardWriter`."""
        self._write(self._gathered.rest())
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        self._gathered.forget()
        with suppress(Exception):
            self._file.close()
        if self._writer is not None and self._give_up is not None:
            self._give_up(self._writer)
        self._writer = None

    def _write(self, pieces: Iterable[tuple[pa.Table, int]]) -> None:
        for table, rows in pieces:
            if self._writer is None:
                schema = table.schema.with_metadata({RUN_KEY: self._run.encode()})
                if table.nbytes // len(table) >= _LARGE_ROW_BYTES:
                    self._have_arrow_write()
                self._writer = self._start(self._file, schema)
            self._writer.write_table(table, rows)

    def _have_arrow_write(self) -> None:
        """Have Arrow write the file itself, which counts as encoding; it is read again to be hashed.

        What a file of Python's gets from Arrow is copied first: of pages as large as a row of many megabytes, that is a
        fifth of the time.
        """
        self._file.close()
        self._file = pa.OSFile(str(self._path), "wb")


def _within_lists(ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> Iterator[tuple[Any, Mapping[str, Rows]]]:
    """Yield rows, so few at a time that a list's 32 bits count their values."""
    counts = [len(column.values) for column in columns.values() if isinstance(column, RaggedRows)]
    if max(counts, default=0) <= _MOST_VALUES:
        yield ids, columns
        return
    if len(ids) == 1:
        raise UsageError(f"a row of {max(counts):,} values is too long for a list", hint="use npy:PATH or zarr:PATH")
    middle = len(ids) // 2
    for part in (slice(middle), slice(middle, None)):
        yield from _within_lists(ids[part], {name: column[part] for name, column in columns.items()})


def to_arrow(ids: npt.NDArray[Any], columns: Mapping[str, Rows], *, copy: bool, tensors: bool) -> pa.Table:
    """Return rows as a table; over the memory of `columns` where `copy` does not say otherwise."""
    arrays = [pa.array(ids.tolist(), pa.string()) if ids.dtype.kind == "U" else pa.array(np.array(ids))]
    arrays += [_column(name, column, copy=copy, tensors=tensors) for name, column in columns.items()]
    return pa.Table.from_arrays(arrays, names=[ID_COLUMN, *columns])


def _column(name: str, column: Rows, *, copy: bool, tensors: bool) -> pa.Array:
    if not isinstance(column, RaggedRows):
        rows = np.array(column) if copy else column
        if not tensors or rows.ndim <= _VECTORS:
            return _lists(name, rows)
        flat = _lists(name, rows.reshape(len(rows), -1))
        kind = pa.fixed_shape_tensor(flat.type.value_type, rows.shape[1:])
        return pa.ExtensionArray.from_storage(kind, flat.cast(kind.storage_type))
    values = _lists(name, np.array(column.values) if copy else column.values)
    offsets = pa.array(column.offsets.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(pa.field("element", values.type)))


def _lists(name: str, column: npt.NDArray[Any]) -> pa.Array:
    if 0 in column.shape[1:]:
        raise UsageError(
            f"output {name!r} has rows of shape {column.shape[1:]}",
            why="Arrow has no lists of a fixed size of zero",
            hint="leave it out",
        )
    flat = np.ascontiguousarray(column, column.dtype.newbyteorder("=")).reshape(-1)
    array = pa.array(flat)
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field("element", array.type), size))
    return array


def from_arrow(column: pa.ChunkedArray) -> Rows:
    """Return a column as the rows that it was made of."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what `combine_chunks` returns differs between versions, and for large ones
        array = array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
    if not pa.types.is_list(array.type):
        return _array(array)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return RaggedRows(_array(array.flatten()), offsets - offsets[0])


def _array(array: pa.Array) -> npt.NDArray[Any]:
    rows = len(array)
    if isinstance(array.type, pa.FixedShapeTensorType):
        values: npt.NDArray[Any] = array.storage.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(rows, *array.type.shape)
    shape = [rows]
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def ids_of(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the ids in a column; raises ValueError if it holds something else."""
    if column.null_count:
        raise ValueError("a row of it has no id")
    if pa.types.is_string(column.type):
        return _texts_of(column)
    if not pa.types.is_int64(column.type):
        raise ValueError(f"its ids are {column.type}")
    return np.array(column.to_numpy(), np.int64)


def _texts_of(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return strings as an array; of them, few at a time are objects of Python's."""
    longest = pc.max(pc.utf8_length(column)).as_py() or 1
    texts = np.empty(len(column), f"U{longest}")
    for start in range(0, len(column), _TEXTS):
        part = column.slice(start, _TEXTS)
        texts[start : start + _TEXTS] = part.to_pylist()
    return texts
