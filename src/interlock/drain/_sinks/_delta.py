"""A Delta table of Parquet files: readers ask its log which files count, and each shard is in it by one transaction.

Files are as those of `parquet:`, but for lists: Delta has none of a fixed size, so vectors and higher ranks are arrays
(of arrays), and the shape of a row is in the file's own metadata.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from interlock._core._rows import RaggedRows
from interlock.drain._files import remove, sync
from interlock.drain._schema import ID_COLUMN
from interlock.drain._sinks._parquet import COPIES, begin, damaged, give_up, read_content, read_table
from interlock.drain._sinks._tables import TableShard
from interlock.errors import SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from interlock._core._protocols import ListedShard, ShardContent
    from interlock._core._rows import Rows

LOG = "_delta_log"
_SHAPES_KEY = b"interlock.shapes"
_REFUSED = frozenset(" ,;{}()=") | frozenset(map(chr, range(32)))
"""What Delta allows in no name of a column, and control characters."""

_TRIES = 100
"""How often a commit is tried: each time that one fails, that of another rank succeeded."""


@final
class DeltaSink:
    """One Parquet file per shard, in the log of a Delta table once it is whole."""

    scheme = "delta"
    suffix = ".parquet"
    dtypes: frozenset[str] = frozenset()
    ragged = True
    working_copies = COPIES
    lacks = frozenset({"uint8", "uint16", "uint32", "uint64", "float16"})

    def __init__(self) -> None:
        self._opened: tuple[Path, DeltaTable] | None = None
        self._synced = -1

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:  # noqa: ARG002 - it holds all ids
        """As in `SupportsLimits`: refuses names that a Delta table cannot have, or cannot tell apart."""
        taken = {ID_COLUMN: ID_COLUMN}
        for name in names:
            if bad := sorted(_REFUSED.intersection(name)):
                why = f"{bad[0]!r} may not be in the name of a column of a Delta table"
                raise UsageError(f"output {name!r} cannot be stored in delta:", why=why, hint="rename it")
            if other := taken.get(name.lower()):
                why = "Delta tables do not tell columns apart by case"
                raise UsageError(f"output {name!r} would be the column {other!r}", why=why, hint="rename it")
            taken[name.lower()] = name

    def open_shard(self, path: Path, *, run: str) -> TableShard:
        """As in `Sink`."""
        return TableShard(path, run, _start, give_up, tensors=False)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: reads the footer and the ids."""
        return read_content(path)

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: reads only the row groups that hold the positions."""
        rows = read_table(path, positions)
        try:
            shapes = json.loads((rows.schema.metadata or {})[_SHAPES_KEY])
            names = [name for name in rows.column_names if name != ID_COLUMN]
            return {name: _rows(rows.column(name), shapes[name]) for name in names}
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error

    def listed(self, root: Path) -> frozenset[str] | None:
        """As in `SupportsCatalog`."""
        with _told(root, "read"):
            table = self._table(root)
            return None if table is None else frozenset(pa.table(table.get_add_actions())["path"].to_pylist())

    def publish(self, root: Path, added: Sequence[ListedShard], removed: Sequence[str]) -> None:
        """As in `SupportsCatalog`: one transaction. One that removes moves rows to other files, and changes none."""
        with _told(root, "commit to"):
            adds = [_add(root, shard, is_new=not removed) for shard in added]
            now_ms = time.time_ns() // 1_000_000
            removes = [RemoveAction(name, data_change=False, deletion_timestamp=now_ms) for name in removed]
            is_made = bool(adds) and self._create(root, adds)
            table = self._table(root)
            if table is None:
                return
            if not is_made and (adds or removes):
                options = CommitProperties(max_commit_retries=_TRIES)
                table.create_write_transaction([*adds, *removes], "append", table.schema(), commit_properties=options)
                table.update_incremental()
            self._sync_log(root, table.version())

    def _create(self, root: Path, adds: list[AddAction]) -> bool:
        """Make the table of its first files, if there is none; return whether that was done."""
        if self._table(root) is not None:
            return False
        schema = Schema.from_arrow(pq.read_schema(root / adds[0].path))
        once = CommitProperties(max_commit_retries=0)  # else it would be made anew over that of another rank
        try:
            create_table_with_add_actions(_uri(root), schema, adds, commit_properties=once)
        except DeltaError:
            if self._table(root) is None:
                raise
            return False  # another rank has made it just now
        return True

    def discard(self, root: Path) -> None:
        """As in `SupportsCatalog`."""
        self._opened, self._synced = None, -1
        log, hidden = root / LOG, root / f"{LOG}.gone"
        remove(hidden)
        if log.exists():
            log.rename(hidden)
            sync(root)
        remove(hidden)

    def _table(self, root: Path) -> DeltaTable | None:
        """Return the table as it is now, or None if there is none."""
        if self._opened is not None and self._opened[0] == root:
            self._opened[1].update_incremental()
        elif DeltaTable.is_deltatable(_uri(root)):
            self._opened = root, DeltaTable(_uri(root))
        else:
            return None
        return self._opened[1]

    def _sync_log(self, root: Path, version: int) -> None:
        """Wait until the log is on the storage up to a version, whoever wrote it: deltalake does not."""
        for one in range(self._synced + 1, version + 1):
            for suffix in (".json", ".checkpoint.parquet"):
                with suppress(FileNotFoundError):  # there are few checkpoints, and they let old versions go
                    sync(root / LOG / f"{one:020d}{suffix}")
        with suppress(FileNotFoundError):
            sync(root / LOG / "_last_checkpoint")
        sync(root / LOG)
        if self._synced < 0:
            sync(root)
        self._synced = version


@contextmanager
def _told(root: Path, doing: str) -> Iterator[None]:
    """Turn what deltalake refuses into one clear line."""
    try:
        yield
    except DeltaError as error:
        raise SinkError(
            f"cannot {doing} the Delta table in {root}",
            why=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            hint="what was committed stays; run again to go on",
        ) from error


def _uri(root: Path) -> str:
    """Return what deltalake calls a folder."""
    path = root.resolve()
    if bad := sorted(set("%\\\n").intersection(str(path))):
        why = f"deltalake takes the {bad[0]!r} in it for something else"
        raise UsageError(f"a Delta table cannot be in {str(path)!r}", why=why, hint="use another folder")
    return path.as_uri()


def _add(root: Path, shard: ListedShard, *, is_new: bool) -> AddAction:
    stats: dict[str, Any] = {"numRecords": shard.rows, "nullCount": {ID_COLUMN: 0}}
    if shard.bounds is not None:
        stats |= {"minValues": {ID_COLUMN: shard.bounds[0]}, "maxValues": {ID_COLUMN: shard.bounds[1]}}
    changed_ms = (root / shard.name).stat().st_mtime_ns // 1_000_000
    return AddAction(shard.name, shard.size_bytes, {}, changed_ms, is_new, json.dumps(stats))


def _start(file: pa.PythonFile, schema: pa.Schema) -> pq.ParquetWriter:
    shapes = {field.name: _shape_of(field.type) for field in schema if field.name != ID_COLUMN}
    writer = begin(file, schema, store_schema=False)
    writer.add_key_value_metadata({**schema.metadata, _SHAPES_KEY: json.dumps(shapes).encode()})
    return writer


def _shape_of(kind: pa.DataType) -> list[int]:
    """Return the shape of a row; -1 for the axis that has another length in each."""
    shape = []
    while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        shape.append(-1 if pa.types.is_list(kind) else kind.list_size)
        kind = kind.value_type
    return shape


def _rows(column: pa.ChunkedArray, shape: list[int]) -> Rows:
    array = pa.concat_arrays(column.chunks)
    offsets = array.offsets.to_numpy().astype(np.int64) if shape[:1] == [-1] else None
    while pa.types.is_list(array.type):
        array = array.flatten()
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if offsets is None:
        return values.reshape(len(column), *shape)
    return RaggedRows(values.reshape(shape), offsets - offsets[0])
