"""Rows of Arrow IPC and Feather files, mapped into memory."""

from __future__ import annotations

import functools
import hashlib
import threading
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.ipc

from interlock.errors import SourceError
from interlock.feed.sources._columns import Column, column_of_lists, decode, has_fixed_shape, numpy_dtype, shape_of
from interlock.feed.sources._digest import digest_file
from interlock.feed.sources._row_groups import DecodedGroup, GroupedRows
from interlock.feed.sources._schema import check_agrees, chosen_columns, joined_ids
from interlock.feed.sources._storage import Storage, as_locations, is_url

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_FILE_MAGIC = b"ARROW1"
_KEPT_BATCHES = 1024
"""Batches are small, and most that are kept are but views of the mapped file."""


@final
class ArrowSource:
    """Rows of Arrow IPC files, in the file format (Feather) or the stream format (as Hugging Face `datasets` caches).

    One column makes a sample that is an array; several make a dict. Numbers come as such, lists of one length as
    arrays. Local files are mapped into memory, so that only the rows that are read come from the disk; do not shorten
    one that is in use. Remote files in the file format are read a record batch at a time; in the stream format, whole.

    Args:
        paths: A file, a url, or a list of these.
        columns: Which make a sample, in this order. Default: every one of numbers, save the id column.
        id_column: The one that names the rows: integers or strings, no two alike; held in memory. Default: the row
            number.
        ragged: Those whose rows are lists of any length, as arrays of that length; a feed needs `ragged=` for them too.

    Raises:
        SourceError: There is no row; a column is missing, is not of numbers, or differs between files; an id is null or
            there twice; one in `ragged` has no lists.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
        ragged: Sequence[str] = (),
    ) -> None:
        self._paths = as_locations(paths)
        if not self._paths:
            raise SourceError("no Arrow files are given", why="the list is empty")
        label = self._paths[0] if len(self._paths) == 1 else f"{len(self._paths)} Arrow files"
        tables = [_Batches(path) for path in self._paths]
        batches = [(table, number, rows) for table in tables for number, rows in enumerate(table.open_counts()) if rows]
        if not batches:
            raise SourceError(f"{label} has no rows", hint="check what wrote it")
        schema = tables[0].schema()
        names = chosen_columns(label, schema, columns, id_column, ragged)
        for path, table in zip(self._paths, tables, strict=True):
            check_agrees(path, table.schema(), self._paths[0], schema, [*names, *([id_column] if id_column else [])])
        self._id_column = id_column
        ids = None
        if id_column is not None:
            ids = joined_ids(label, id_column, [table.column(id_column) for table in tables])
        described = [
            column_of_lists(label, schema.field(name))
            if name in ragged
            else _describe(label, schema.field(name), batches)
            for name in names
        ]
        read = functools.partial(_read_batch, [(table, number) for table, number, _ in batches], described)
        self._rows = GroupedRows(label, [rows for _, _, rows in batches], described, ids, read, _KEPT_BATCHES)

    def __repr__(self) -> str:
        return f"ArrowSource({self._paths!r}, rows={len(self)}, columns={[one.name for one in self._rows.columns]})"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        """Read one row.

        Raises:
            IndexError: There is no such row.
            SampleError: It cannot be read, has a null, or a list of another length than the first row's.
        """
        return self._rows.row(index)

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """As in `SupportsReadInto`: each run of neighbours in one copy.

        Raises:
            IndexError: There is no such row.
            SampleError: As `__getitem__` does.

        Copies: once, from the mapped file into `out`; compressed files and booleans are decoded between.
        """
        self._rows.read_into(indices, out)

    def id_of(self, index: int) -> int | str:
        """Return the value of the id column, or the row number."""
        return self._rows.id_of(index)

    def chunk_starts(self) -> list[int]:
        """Return the first row of each record batch."""
        return self._rows.starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        """Rows, columns, id column, and a digest of the files' sizes and of up to 256 blocks of each."""
        content = "\n".join(digest_file(path) for path in self._paths)
        return {
            "kind": "arrow",
            "rows": len(self),
            "columns": self._rows.described,
            "id_column": self._id_column,
            "content": hashlib.sha256(content.encode()).hexdigest(),
        }


@final
class _Batches:
    """The record batches of one file, opened when first needed, on any number of threads.

    Args:
        path: The file, or its url.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reader: Any = None

    def __reduce__(self) -> tuple[type[_Batches], tuple[str]]:
        return _Batches, (self.path,)

    def open_counts(self) -> list[int]:
        """Return the rows of each record batch.

        Raises:
            SourceError: It is no Arrow file, or is damaged.
        """
        try:
            with self._lock:
                reader = self._opened()
                return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split())
            raise SourceError(f"{self.path} cannot be read as Arrow", why=why, hint="write it again") from error

    def schema(self) -> Any:
        """Return its Arrow schema."""
        with self._lock:
            return self._opened().schema

    def batch(self, number: int) -> Any:
        """Return a record batch."""
        with self._lock:
            return self._opened().get_batch(number)

    def column(self, name: str) -> Any:
        """Return a whole column, as a chunked array."""
        with self._lock:
            reader = self._opened()
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return pa.chunked_array([one.column(name) for one in batches], reader.schema.field(name).type)

    def _opened(self) -> Any:
        if self._reader is None:
            remote = is_url(self.path)
            file = pa.PythonFile(Storage().open(self.path), "r") if remote else pa.memory_map(self.path)
            magic = file.read(len(_FILE_MAGIC))
            file.seek(0)
            self._reader = pa.ipc.open_file(file) if magic == _FILE_MAGIC else _Stream(pa.ipc.open_stream(file))
        return self._reader


@final
class _Stream:
    """A file in the stream format, which has no table of contents: all batches are kept, mapped where it is local."""

    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._batches = list(reader)
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Any:
        return self._batches[number]


def _describe(label: str, field: Any, batches: Sequence[tuple[_Batches, int, int]]) -> Column:
    first = None
    if not has_fixed_shape(field.type):
        for table, number, _ in batches:
            present = table.batch(number).column(field.name).drop_null()
            if len(present):
                first = present.slice(0, 1)
                break
        else:
            raise SourceError(f"column {field.name!r} of {label} is null in every row", hint="choose others")
    return Column(field.name, shape_of(field.type, first), numpy_dtype(field.type))


def _read_batch(batches: Sequence[tuple[_Batches, int]], columns: Sequence[Column], at: int) -> DecodedGroup:
    table, number = batches[at]
    try:
        batch = table.batch(number)
        decoded = {one.name: decode(batch.column(one.name), one) for one in columns}
    except (OSError, pa.ArrowException, IndexError, KeyError) as error:
        reason = " ".join(str(error).split())
        return DecodedGroup(failure=f"record batch {number} of {table.path} cannot be read: {reason}")
    bad: dict[int, str] = {}
    for one in decoded.values():
        bad = {**one.bad, **bad}
    return DecodedGroup({name: one.values for name, one in decoded.items()}, bad)
