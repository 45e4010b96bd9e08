"""Arrow IPC files, which are Feather files of version 2: mapped by readers, so nothing is compressed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN
from interlock.drain._sinks._tables import RUN_KEY, Gathered, from_arrow, ids_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


@final
class ArrowSink:
    """One file per shard. The run is in the metadata of its schema."""

    scheme = "arrow"
    suffix = ".arrow"

    def open_shard(self, path: Path, *, run: str) -> _ArrowShard:
        """As in `Sink`."""
        return _ArrowShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: maps the file and reads the ids."""
        try:
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
                run = (file.schema.metadata or {}).get(RUN_KEY, b"").decode("ascii", "replace")
                return ShardContent(run, ids_of(_table(file).column(ID_COLUMN)))
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise _damaged(path, error) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
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


@final
class _ArrowShard:
    """A file being written, one record batch after the other."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._file = pa.OSFile(str(path), "wb")
        self._writer: Any = None
        self._gathered = Gathered()

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """As in `ShardWriter`. Copies: only writes that are too small for a record batch of their own."""
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
        self._writer = None  # without its footer, what is there never passes for whole

    def _write(self, pieces: Iterable[tuple[pa.Table, int]]) -> None:
        for table, rows in pieces:
            if self._writer is None:
                schema = table.schema.with_metadata({RUN_KEY: self._run.encode()})
                self._writer = pa.ipc.new_file(self._file, schema)
            self._writer.write_table(table, max_chunksize=rows)
