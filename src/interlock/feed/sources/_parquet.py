"""Rows of Parquet files."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa

from interlock.errors import SourceError
from interlock.feed.sources._columns import Column, column_of_lists, has_fixed_shape, numpy_dtype, shape_of
from interlock.feed.sources._digest import digest_file, digest_files
from interlock.feed.sources._files import PARQUET_SUFFIXES, files_below
from interlock.feed.sources._row_groups import DecodedGroup, GroupedRows, RowGroup, open_parquet, read_group
from interlock.feed.sources._schema import check_agrees, chosen_columns, joined_ids
from interlock.feed.sources._storage import as_location, is_folder, join

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


@final
class ParquetSource:
    """Rows of one Parquet file, or of all below a folder in the order of their relative paths.

    One column makes a sample that is an array; several make a dict. Numbers come as such, lists of one length as
    arrays. Names that start with `.` or `_` are hidden. Folder names such as `day=3` give no column. Row groups are
    decoded whole and a few are kept: reading in order costs each once, shuffled reading wants small row groups.

    Args:
        path: File or folder, or the url of one.
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
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
        ragged: Sequence[str] = (),
    ) -> None:
        self._path = as_location(path)
        self._names = list(files_below(self._path, PARQUET_SUFFIXES).names) if is_folder(self._path) else []
        files = [join(self._path, name) for name in self._names] or [self._path]
        footers = [_read_footer(file) for file in files]
        self._groups = [group for groups, _ in footers for group in groups]
        if not self._groups:
            raise SourceError(f"{path} has no rows", hint="check what wrote it")
        schema = footers[0][1]
        names = chosen_columns(self._path, schema, columns, id_column, ragged)
        used = names if id_column is None else [*names, id_column]
        for file, (_, other) in zip(files, footers, strict=True):
            check_agrees(file, other, files[0], schema, used)
        self._id_column = id_column
        ids = None if id_column is None else _read_ids(self._path, files, id_column)
        described = [self._describe(schema.field(name), ragged) for name in names]
        read = functools.partial(_read_nth, self._groups, described)
        self._rows = GroupedRows(self._path, [group.rows for group in self._groups], described, ids, read)

    def __repr__(self) -> str:
        return f"ParquetSource({self._path!r}, rows={len(self)}, columns={[one.name for one in self._rows.columns]})"

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

        Copies: once, from the decoded row group into `out`.
        """
        self._rows.read_into(indices, out)

    def chunk_starts(self) -> list[int]:
        """Return the first row of each row group."""
        return self._rows.starts[:-1]

    def id_of(self, index: int) -> int | str:
        """Return the value of the id column, or the row number."""
        return self._rows.id_of(index)

    def fingerprint(self) -> dict[str, Any]:
        """Rows, columns, id column, and a digest of names, sizes and sampled blocks of the files, footers included."""
        return {
            "kind": "parquet",
            "rows": len(self),
            "columns": self._rows.described,
            "id_column": self._id_column,
            "content": digest_files(self._path, self._names) if self._names else digest_file(self._path),
        }

    def _describe(self, field: Any, ragged: Sequence[str]) -> Column:
        if field.name in ragged:
            return column_of_lists(self._path, field)
        first = None if has_fixed_shape(field.type) else self._first_value(field.name)
        return Column(field.name, shape_of(field.type, first), numpy_dtype(field.type))

    def _first_value(self, name: str) -> Any:
        """Return an array of one row, the first that is not null: its lists say how long all are."""
        for group in self._groups:
            with open_parquet(group.path) as file:
                present = file.read_row_group(group.number, columns=[name]).column(name).drop_null()
            if len(present):
                return present.slice(0, 1).combine_chunks()
        raise SourceError(f"column {name!r} of {self._path} is null in every row", hint="choose others with --columns")


def _read_nth(groups: Sequence[RowGroup], columns: Sequence[Column], number: int) -> DecodedGroup:
    return read_group(groups[number], columns)


def _read_footer(path: str) -> tuple[list[RowGroup], Any]:
    """Return the row groups of a file that are not empty, and its Arrow schema."""
    try:
        with open_parquet(path) as file:
            metadata = file.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return [RowGroup(path, number, rows) for number, rows in enumerate(counts) if rows], file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise SourceError(
            f"{path} cannot be read as Parquet", why=why, hint="write it again, or move it away"
        ) from error


def _read_ids(path: str, files: Sequence[str], name: str) -> Any:
    parts = []
    for file in files:
        try:
            with open_parquet(file) as opened:
                parts.append(opened.read(columns=[name]).column(name))
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot read the ids in {path}", why=" ".join(str(error).split())) from error
    return joined_ids(path, name, parts)
