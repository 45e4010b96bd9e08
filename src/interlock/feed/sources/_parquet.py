"""Rows of Parquet files."""

from __future__ import annotations

import bisect
import difflib
import itertools
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from interlock.errors import SampleError, SourceError
from interlock.feed.sources._columns import Column, has_fixed_shape, holds_numbers, numpy_dtype, shape_of
from interlock.feed.sources._digest import digest_file, digest_files
from interlock.feed.sources._files import PARQUET_SUFFIXES, files_below
from interlock.feed.sources._row_groups import DecodedGroup, GroupCache, RowGroup, read_group
from interlock.feed.sources._runs import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@final
class ParquetSource:
    """Rows of one Parquet file, or of all below a folder in the order of their relative paths.

    One column makes a sample that is an array; several make a dict. Numbers come as such, lists of one length as
    arrays. Names that start with `.` or `_` are hidden. Folder names such as `day=3` give no column. Row groups are
    decoded whole and a few are kept: reading in order costs each once, shuffled reading wants small row groups.

    Args:
        path: File or folder.
        columns: Which make a sample, in this order. Default: every one of numbers, save the id column.
        id_column: The one that names the rows: integers or strings, no two alike; held in memory. Default: the row
            number.

    Raises:
        SourceError: There is no row; a column is missing, is not of numbers, or differs between files; an id is null or
            there twice.
    """

    def __init__(self, path: Path, *, columns: Sequence[str] | None = None, id_column: str | None = None) -> None:
        self._path = path
        self._files = _files(path)
        footers = [_read_footer(file) for file in self._files]
        self._groups = [group for groups, _ in footers for group in groups]
        self._starts = list(itertools.accumulate((group.rows for group in self._groups), initial=0))
        if not self._groups:
            raise SourceError(f"{path} has no rows", hint="check what wrote it")
        schema = footers[0][1]
        names = _chosen(path, schema, columns, id_column)
        used = names if id_column is None else [*names, id_column]
        for file, (_, other) in zip(self._files, footers, strict=True):
            _check_agrees(file, other, self._files[0], schema, used)
        self._id_column = id_column
        self._ids = None if id_column is None else _read_ids(path, self._files, id_column)
        self._columns = [self._describe(schema.field(name)) for name in names]
        self._cache = GroupCache(lambda number: read_group(self._groups[number], self._columns))

    def __repr__(self) -> str:
        return f"ParquetSource({str(self._path)!r}, rows={len(self)}, columns={[one.name for one in self._columns]})"

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        """Read one row.

        Raises:
            IndexError: There is no such row.
            SampleError: It cannot be read, has a null, or a list of another length than the first row's.
        """
        group, position = self._locate(index)
        values = {one.name: group.arrays[one.name][position] for one in self._columns}
        return values if len(values) > 1 else values[self._columns[0].name]

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """Read rows `indices` into `out`, each run of neighbours in one copy.

        Args:
            indices: Row numbers.
            out: An array, or a dict of them; first axis `len(indices)`.

        Raises:
            IndexError: There is no such row.
            SampleError: As `__getitem__` does.

        Copies: once, from the decoded row group into `out`.
        """
        targets = out if len(self._columns) > 1 else {self._columns[0].name: out}
        for start, stop, first in runs(indices):
            done = start
            while done < stop:
                group, position = self._locate(first + done - start)
                count = min(stop - done, group.rows - position)
                for step in range(count if group.bad else 0):
                    self._locate(first + done - start + step)  # raises for the first bad row
                for name, array in group.arrays.items():
                    targets[name][done : done + count] = array[position : position + count]
                done += count

    def id_of(self, index: int) -> int | str:
        """Return the value of the id column, or the row number."""
        if self._ids is None:
            return index
        value: int | str = self._ids[index].as_py()
        return value

    def fingerprint(self) -> dict[str, Any]:
        """Rows, columns, id column, and a digest of names, sizes and sampled blocks of the files, footers included."""
        single = self._path.is_file()
        names = [] if single else [file.relative_to(self._path).as_posix() for file in self._files]
        return {
            "kind": "parquet",
            "rows": len(self),
            "columns": [f"{one.name}: {one.dtype}{list(one.shape)}" for one in self._columns],
            "id_column": self._id_column,
            "content": digest_file(self._path) if single else digest_files(self._path, names),
        }

    def _locate(self, index: int) -> tuple[DecodedGroup, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._starts, index) - 1
        group = self._cache.get(number)
        position = index - self._starts[number]
        what = f"cannot read row {index} of {self._path}"
        if group.failure:
            raise SampleError(what, index=index, why=group.failure, hint="write the file again")
        if position in group.bad:
            hint = "fill or drop it, or choose other columns with --columns"
            raise SampleError(what, index=index, why=group.bad[position], hint=hint)
        return group, position

    def _describe(self, field: Any) -> Column:
        first = pa.array([], field.type) if has_fixed_shape(field.type) else self._first_value(field.name)
        return Column(field.name, shape_of(field.type, first), numpy_dtype(field.type))

    def _first_value(self, name: str) -> Any:
        """Return an array of one row, the first that is not null: its lists say how long all are."""
        for group in self._groups:
            with pq.ParquetFile(group.path) as file:
                present = file.read_row_group(group.number, columns=[name]).column(name).drop_null()
            if len(present):
                return present.slice(0, 1).combine_chunks()
        raise SourceError(f"column {name!r} of {self._path} is null in every row", hint="choose others with --columns")


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [path / name for name in files_below(path, PARQUET_SUFFIXES).names]


def _read_footer(path: Path) -> tuple[list[RowGroup], Any]:
    """Return the row groups of a file that are not empty, and its Arrow schema."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return [RowGroup(path, number, rows) for number, rows in enumerate(counts) if rows], file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise SourceError(
            f"{path} cannot be read as Parquet", why=why, hint="write it again, or move it away"
        ) from error


def _chosen(path: Path, schema: Any, columns: Sequence[str] | None, id_column: str | None) -> list[str]:
    for name in [*(columns or ()), *([] if id_column is None else [id_column])]:
        if schema.names.count(name) != 1:
            raise _missing(path, schema, name)
    if columns is None:
        chosen = [one.name for one in schema if one.name != id_column and holds_numbers(one.type)]
        if not chosen:
            kinds = ", ".join(f"{one.name} ({one.type})" for one in schema)
            raise SourceError(
                f"{path} has no column of numbers", why=f"it has {kinds}", hint="a sample is made of numbers"
            )
        return chosen
    for name in columns:
        if not holds_numbers(schema.field(name).type):
            raise SourceError(
                f"column {name!r} of {path} is not of numbers",
                why=f"its type is {schema.field(name).type}",
                hint="leave it out of --columns",
            )
    if len(set(columns)) < len(columns) or not columns:
        raise SourceError("--columns names a column twice, or none", why=f"it is {','.join(columns)!r}")
    return list(columns)


def _missing(path: Path, schema: Any, name: str) -> SourceError:
    if name in schema.names:
        return SourceError(f"{path} has more than one column {name!r}", hint="write it with unique names")
    close = difflib.get_close_matches(name, schema.names, n=1)
    why = f"it has {', '.join(schema.names)}"
    return SourceError(f"{path} has no column {name!r}", why=why, hint=f"did you mean {close[0]!r}?" if close else "")


def _check_agrees(file: Path, schema: Any, first_file: Path, first: Any, names: Sequence[str]) -> None:
    for name in names:
        if schema.names.count(name) != 1:
            raise _missing(file, schema, name)
        if not schema.field(name).type.equals(first.field(name).type):
            raise SourceError(
                f"column {name!r} differs between files",
                why=f"it is {first.field(name).type} in {first_file} and {schema.field(name).type} in {file}",
                hint="write them with one schema",
            )


def _read_ids(path: Path, files: Sequence[Path], name: str) -> Any:
    """Return the id column of all files as one Arrow array of int64 or strings.

    Raises:
        SourceError: It is of another type, or an id is null or there twice.
    """
    try:
        parts = [pq.read_table(file, columns=[name], partitioning=None).column(name) for file in files]
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"cannot read the ids in {path}", why=" ".join(str(error).split())) from error
    kind = parts[0].type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        hint = "choose a column of integers or strings with --id-column"
        raise SourceError(f"id column {name!r} of {path} is {kind}", hint=hint)
    wanted = pa.int64() if pa.types.is_integer(kind) else pa.large_string()
    try:
        ids = pa.chunked_array([chunk for part in parts for chunk in part.cast(wanted).chunks], wanted).combine_chunks()
    except pa.ArrowInvalid as error:
        raise SourceError(f"id column {name!r} of {path} does not fit 64 signed bits", why=str(error)) from error
    if ids.null_count:
        row = pc.index(ids.is_null(), value=True).as_py()
        raise SourceError(f"id column {name!r} of {path} is null in row {row}", hint="every row needs an id of its own")
    _check_unique(path, name, ids)
    return ids


def _check_unique(path: Path, name: str, ids: Any) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    counts = pc.value_counts(ids)
    value = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"]
    rows = pc.indices_nonzero(pc.equal(ids, value))
    raise SourceError(
        f"id column {name!r} of {path} has {value.as_py()!r} more than once",
        why=f"in rows {rows[0].as_py()} and {rows[1].as_py()}",
        hint="every row needs an id of its own",
    )
