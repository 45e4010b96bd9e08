"""Parquet files: a column `id` and one per output; see `_tables`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN
from interlock.drain._sinks._tables import RUN_KEY, TableShard, from_arrow, ids_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows


COPIES = 6
"""Measured: levels of 2 bytes a number, the page, and buffers that grew by doubling. Large rows are all of a piece."""

_LEVELS = 1 << 16
"""Numbers that the encoder takes at a time. With its own 1,024, vectors take it a tenth (float16) to a fifth longer."""


@final
class ParquetSink:
    """One file per shard. The run is in the file's key-value metadata."""

    scheme = "parquet"
    suffix = ".parquet"
    ragged = True
    working_copies = COPIES

    def open_shard(self, path: Path, *, run: str) -> TableShard:
        """As in `Sink`."""
        return TableShard(path, run, begin, give_up)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: reads the footer and the ids."""
        return read_content(path)

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: reads only the row groups that hold the positions."""
        rows = read_table(path, positions)
        return {name: from_arrow(rows.column(name)) for name in rows.column_names if name != ID_COLUMN}


def read_content(path: Path) -> ShardContent:
    """Return whose a file is and which rows it has; reads the footer and the ids."""
    try:
        with pq.ParquetFile(path) as file:
            run = (file.schema_arrow.metadata or {}).get(RUN_KEY, b"").decode("ascii", "replace")
            ids = file.read(columns=[ID_COLUMN]).column(ID_COLUMN)
            return ShardContent(run, ids_of(ids))
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise damaged(path, error) from error


def read_table(path: Path, positions: Sequence[int]) -> pa.Table:
    """Return the rows of a file at `positions`, in that order; reads only the row groups that hold them."""
    wanted = np.asarray(positions, np.int64)
    try:
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
            group_of = np.searchsorted(starts, wanted, side="right") - 1
            groups = np.unique(group_of)
            table = file.read_row_groups(groups.tolist())
    except (pa.ArrowException, ValueError) as error:
        raise damaged(path, error) from error
    shift = starts[groups] - np.concatenate(([0], np.cumsum(np.asarray(sizes)[groups])))[:-1]
    return table.take(pa.array(wanted - shift[np.searchsorted(groups, group_of)]))


def damaged(path: Path, error: Exception) -> UsageError:
    """Return what to raise for a file that cannot be read."""
    return UsageError(f"{path} is no whole Parquet file of ours", why=str(error).splitlines()[0])


def begin(file: pa.PythonFile, schema: pa.Schema, *, store_schema: bool = True) -> pq.ParquetWriter:
    """Return a writer.

    Args:
        file: Where to.
        schema: Its columns.
        store_schema: Whether the file also says it in Arrow's own words, which tell lists of a fixed size from others.
    """
    return pq.ParquetWriter(
        file,
        schema,
        compression=dict.fromkeys(_compressible(schema), "zstd") or "none",
        use_dictionary=False,
        write_statistics=[ID_COLUMN],
        write_batch_size=_LEVELS,
        store_schema=store_schema,
    )


def give_up(writer: pq.ParquetWriter) -> None:
    """Let go of a writer whose file is closed."""
    with suppress(Exception):  # its footer finds no file, so what is there never passes for whole
        writer.close()
    writer.is_open = False  # else it tries again when it is collected, and complains


def _compressible(schema: pa.Schema) -> list[str]:
    """Return the paths of columns that a general codec shrinks: not floats, whose low bits are noise."""
    paths = []
    for field in schema:
        path, kind = field.name, field.type
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if not pa.types.is_floating(kind):
            paths.append(path)
    return paths
