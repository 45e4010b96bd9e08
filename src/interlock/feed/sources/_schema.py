"""Which columns of a table make a sample, and which names its rows."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from interlock.errors import SourceError
from interlock.feed.sources._columns import holds_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence


def chosen_columns(
    path: str, schema: Any, columns: Sequence[str] | None, id_column: str | None, ragged: Sequence[str] = ()
) -> list[str]:
    """Return the names of the columns that make a sample.

    Args:
        path: Where they are from.
        schema: Arrow schema.
        columns: Those asked for; None for all of numbers.
        id_column: The one that names the rows, which is in no sample.
        ragged: Those whose rows are lists of any length.

    Raises:
        SourceError: One is missing, not unique or not of numbers; or there is none.
    """
    for name in [*(columns or ()), *([] if id_column is None else [id_column]), *ragged]:
        if schema.names.count(name) != 1:
            raise _missing(path, schema, name)
    if columns is not None:
        chosen = list(columns)
        _check_chosen(path, schema, chosen)
    else:
        chosen = [one.name for one in schema if one.name != id_column and holds_numbers(one.type)]
        if not chosen:
            kinds = ", ".join(f"{one.name} ({one.type})" for one in schema)
            raise SourceError(
                f"{path} has no column of numbers", why=f"it has {kinds}", hint="a sample is made of numbers"
            )
    if aside := set(ragged) - set(chosen):
        raise SourceError(
            f"ragged column {min(aside)!r} of {path} is in no sample",
            why=f"those that make one are {', '.join(chosen)}",
            hint="leave it out of ragged",
        )
    return chosen


def _check_chosen(path: str, schema: Any, columns: Sequence[str]) -> None:
    for name in columns:
        if not holds_numbers(schema.field(name).type):
            raise SourceError(
                f"column {name!r} of {path} is not of numbers",
                why=f"its type is {schema.field(name).type}",
                hint="leave it out of --columns",
            )
    if len(set(columns)) < len(columns) or not columns:
        raise SourceError("--columns names a column twice, or none", why=f"it is {','.join(columns)!r}")


def _missing(path: str, schema: Any, name: str) -> SourceError:
    if name in schema.names:
        return SourceError(f"{path} has more than one column {name!r}", hint="write it with unique names")
    close = difflib.get_close_matches(name, schema.names, n=1)
    why = f"it has {', '.join(schema.names)}"
    return SourceError(f"{path} has no column {name!r}", why=why, hint=f"did you mean {close[0]!r}?" if close else "")


def check_agrees(file: str, schema: Any, first_file: str, first: Any, names: Sequence[str]) -> None:
    """Refuse a file in which one of the columns `names` is not what it is in the first file.

    Raises:
        SourceError: It is missing, or of another type.
    """
    for name in names:
        if schema.names.count(name) != 1:
            raise _missing(file, schema, name)
        if not schema.field(name).type.equals(first.field(name).type):
            raise SourceError(
                f"column {name!r} differs between files",
                why=f"it is {first.field(name).type} in {first_file} and {schema.field(name).type} in {file}",
                hint="write them with one schema",
            )


def joined_ids(path: str, name: str, parts: Sequence[Any]) -> Any:
    """Return an id column as one Arrow array of int64 or strings.

    Args:
        path: Where it is from.
        name: Its name.
        parts: The column of each file: chunked arrays of one type.

    Raises:
        SourceError: It is of another type, or an id is null or there twice.
    """
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


def _check_unique(path: str, name: str, ids: Any) -> None:
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
