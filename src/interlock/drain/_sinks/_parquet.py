"""Parquet files: a column `id` and one per output; vectors and higher ranks are fixed-size lists."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_RUN_KEY = b"interlock.run"
_GROUP_BYTES = 8 << 20
"""Size of a row group before encoding; smaller writes are gathered until they make one."""


@final
class ParquetSink:
    """One file per shard. The run is in the file's key-value metadata."""

    scheme = "parquet"
    suffix = ".parquet"

    def open_shard(self, path: Path, *, run: str) -> _ParquetShard:
        """As in `Sink`."""
        return _ParquetShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: reads the footer and the ids."""
        try:
            with pq.ParquetFile(path) as file:
                run = (file.schema_arrow.metadata or {}).get(_RUN_KEY, b"").decode("ascii", "replace")
                ids = file.read(columns=[ID_COLUMN]).column(ID_COLUMN)
                return ShardContent(run, _ids(ids))
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise _damaged(path, error) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
        """As in `Sink`: reads only the row groups that hold the positions."""
        wanted = np.asarray(positions, np.int64)
        try:
            with pq.ParquetFile(path) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
                starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
                group_of = np.searchsorted(starts, wanted, side="right") - 1
                groups = np.unique(group_of)
                table = file.read_row_groups(groups.tolist())
        except (pa.ArrowException, ValueError) as error:
            raise _damaged(path, error) from error
        shift = starts[groups] - np.concatenate(([0], np.cumsum(np.asarray(sizes)[groups])))[:-1]
        rows = table.take(pa.array(wanted - shift[np.searchsorted(groups, group_of)]))
        return {name: _from_arrow(rows.column(name)) for name in rows.column_names if name != ID_COLUMN}


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is no whole Parquet file of ours", why=str(error).splitlines()[0])


@final
class _ParquetShard:
    """A file being written, one row group after the other."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._file = pa.OSFile(str(path), "wb")
        self._writer: Any = None
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """As in `ShardWriter`. Copies: only writes that are too small for a row group of their own."""
        size_bytes = ids.nbytes + sum(column.nbytes for column in columns.values())
        is_small = size_bytes < _GROUP_BYTES
        table = _to_arrow(ids, columns, copy=is_small)
        if self._writer is None:
            self._writer = self._start(table.schema)
        if not is_small:
            self._write_gathered()
            rows = max(1, _GROUP_BYTES * len(ids) // size_bytes)
            self._writer.write_table(table, row_group_size=rows)
            return
        self._gathered.append(table)
        self._gathered_bytes += size_bytes
        if self._gathered_bytes >= _GROUP_BYTES:
            self._write_gathered()

    def close(self) -> None:
        """As in `ShardWriter`."""
        self._write_gathered()
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        self._gathered = []
        with suppress(Exception):
            self._file.close()
        if self._writer is not None:
            with suppress(Exception):  # its footer finds no file, so what is there never passes for whole
                self._writer.close()
            self._writer.is_open = False  # else it tries again when it is collected, and complains

    def _start(self, schema: pa.Schema) -> pq.ParquetWriter:
        schema = schema.with_metadata({_RUN_KEY: self._run.encode()})
        return pq.ParquetWriter(
            self._file,
            schema,
            compression=dict.fromkeys(_compressible(schema), "zstd") or "none",
            use_dictionary=False,
            write_statistics=[ID_COLUMN],
        )

    def _write_gathered(self) -> None:
        if self._gathered:
            table = pa.concat_tables(self._gathered)
            self._gathered, self._gathered_bytes = [], 0
            self._writer.write_table(table, row_group_size=table.num_rows)


def _compressible(schema: pa.Schema) -> list[str]:
    """Return the paths of columns that a general codec shrinks: not floats, whose low bits are noise."""
    paths = []
    for field in schema:
        path, kind = field.name, field.type
        while pa.types.is_fixed_size_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if not pa.types.is_floating(kind):
            paths.append(path)
    return paths


def _to_arrow(ids: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]], *, copy: bool) -> pa.Table:
    arrays = [pa.array(ids.tolist(), pa.string()) if ids.dtype.kind == "U" else pa.array(np.array(ids))]
    arrays += [_lists(name, np.array(column) if copy else column) for name, column in columns.items()]
    return pa.Table.from_arrays(arrays, names=[ID_COLUMN, *columns])


def _lists(name: str, column: npt.NDArray[Any]) -> pa.Array:
    if 0 in column.shape[1:]:
        raise UsageError(
            f"output {name!r} has rows of shape {column.shape[1:]}",
            why="Parquet has no lists of a fixed size of zero",
            hint="leave it out",
        )
    flat = np.ascontiguousarray(column, column.dtype.newbyteorder("=")).reshape(-1)
    array = pa.array(flat)
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field("element", array.type), size))
    return array


def _from_arrow(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what `combine_chunks` returns differs between versions
        array = array.chunk(0)
    shape = [len(array)]
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _ids(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), np.str_)
    if not pa.types.is_int64(column.type):
        raise ValueError(f"its ids are {column.type}")
    return np.array(column.to_numpy(), np.int64)
