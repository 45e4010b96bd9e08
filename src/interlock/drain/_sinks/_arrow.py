"""Arrow IPC files, which are Feather files of version 2: mapped by readers, so nothing is compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN
from interlock.drain._sinks._tables import RUN_KEY, TableShard, from_arrow, ids_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows


@final
class ArrowSink:
    """One file per shard. The run is in the metadata of its schema."""

    scheme = "arrow"
    suffix = ".arrow"
    ragged = True

    def open_shard(self, path: Path, *, run: str) -> TableShard:
        """As in `Sink`."""
        return TableShard(path, run, pa.ipc.new_file)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: maps the file and reads the ids."""
        try:
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
                run = (file.schema.metadata or {}).get(RUN_KEY, b"").decode("ascii", "replace")
                return ShardContent(run, ids_of(_table(file).column(ID_COLUMN)))
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise _damaged(path, error) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: maps the file and copies the rows."""
        wanted = pa.array(np.asarray(positions, np.int64))
        try:
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
                rows = _table(file).take(wanted)
                names = [name for name in rows.column_names if name != ID_COLUMN]
                return {name: from_arrow(rows.column(name)) for name in names}
        except (pa.ArrowException, ValueError) as error:
            raise _damaged(path, error) from error


def _table(file: pa.ipc.RecordBatchFileReader) -> pa.Table:
    table = file.read_all()
    table.validate()
    return table


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is no whole Arrow file of ours", why=(str(error).splitlines() or ["it is empty"])[0])
