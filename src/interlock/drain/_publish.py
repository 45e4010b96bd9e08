"""How a shard becomes visible and then committed, as named steps; a crash between any two loses nothing committed.

| step | after it |
| --- | --- |
| `schema` | `run.json` knows the columns (first shard only) |
| `open`, `write`, `close` | the bytes are with the system, under a temporary name |
| `sync` | and on the storage; the digest is computed meanwhile, on other threads |
| `hash` | the digest is known |
| `rename` | readers see the shard; the next run would adopt it |
| `sync-folder` | its name is on the storage |
| `record` | its line is in the manifest and on the storage: committed |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._digests import Digest
from interlock.drain._files import remove, size_of, sync, sync_shard
from interlock.drain._ids import encode_ids
from interlock.drain._manifest import ShardRecord
from interlock.drain._schema import Column
from interlock.drain._spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from interlock._core._protocols import ShardWriter
    from interlock.drain._ids import IdArray
    from interlock.drain._store import Store

STEPS = ("schema", "open", "write", "close", "sync", "hash", "rename", "sync-folder", "record", "end")


def run_step(name: str, action: Callable[[], None]) -> None:  # noqa: ARG001 - tests stop the process at a name
    """Do one step of the protocol."""
    action()


@final
@dataclass(slots=True)
class PublishTimes:
    """Seconds spent, and what came of it."""

    encode_s: float = 0.0
    hash_s: float = 0.0
    sync_s: float = 0.0
    shards: int = 0
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _OpenShard:
    name: str
    temporary: Path
    writer: ShardWriter
    begun_s: float
    payload_bytes: int = 0
    ids: list[IdArray] = field(default_factory=list)


@final
class Publisher:
    """Writes rows into shards and commits them. Belongs to one thread.

    Args:
        store: The folder.
        subject: Which drain, for a trace.

    Attributes:
        number: Which put the rows are from, for a trace.
    """

    def __init__(self, store: Store, subject: str) -> None:
        self._store = store
        self._subject = subject
        self._shard: _OpenShard | None = None
        self.number = 0
        self.times = PublishTimes()

    @property
    def open_bytes(self) -> int:
        """Bytes of rows in the shard that is open."""
        return self._shard.payload_bytes if self._shard else 0

    @property
    def begun_s(self) -> float | None:
        """When the open shard was begun, on the monotonic clock; None if there is none."""
        return self._shard.begun_s if self._shard else None

    def write(self, ids: IdArray, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append rows to the open shard, beginning one if need be.

        Raises:
            OSError: The storage refused.
        """
        start_s = time.perf_counter()
        if self._shard is None:
            self._shard = self._begin(ids, columns)
        shard = self._shard
        run_step("write", lambda: shard.writer.write(ids, columns))
        shard.ids.append(ids)
        shard.payload_bytes += ids.nbytes + sum(column.nbytes for column in columns.values())
        self.times.encode_s += time.perf_counter() - start_s

    def publish(self) -> None:
        """Commit the open shard, if there is one.

        Raises:
            OSError: The storage refused; the shard is not committed.
        """
        if self._shard is None:
            return
        publication = _Publication(self._store, self._shard)
        for name, action, timer in publication.steps():
            start_s = time.perf_counter()
            with span(timer.removesuffix("_s"), self._subject, self.number, self._shard.payload_bytes):
                run_step(name, action)
            setattr(self.times, timer, getattr(self.times, timer) + time.perf_counter() - start_s)
        self._shard = None
        self.times.shards += 1
        self.times.rows += publication.record.rows
        self.times.size_bytes += publication.record.size_bytes
        run_step("end", lambda: None)

    def abandon(self) -> None:
        """Let go of the open shard and remove its temporary."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.writer.abandon()
            remove(shard.temporary)

    def _begin(self, ids: IdArray, columns: Mapping[str, npt.NDArray[Any]]) -> _OpenShard:
        store = self._store
        if store.run.schema is None:
            schema = tuple(Column(name, column.dtype.name, column.shape[1:]) for name, column in columns.items())
            run_step("schema", lambda: store.remember_schema(schema, ids))
        name = store.layout.shard_name(store.run.run, store.next_number)
        store.next_number += 1
        temporary = store.layout.temporary(name)
        writers: list[ShardWriter] = []
        run_step("open", lambda: writers.append(store.sink.open_shard(temporary, run=store.run.run)))
        return _OpenShard(name, temporary, writers[0], time.monotonic())


@final
class _Publication:
    """One shard on its way."""

    def __init__(self, store: Store, shard: _OpenShard) -> None:
        self._store = store
        self._shard = shard
        self._ids = np.concatenate(shard.ids)
        self._digest = Digest(shard.temporary)
        self.record = ShardRecord(shard.name, len(self._ids), 0, "", "")

    def steps(self) -> tuple[tuple[str, Callable[[], None], str], ...]:
        """Return the steps in order: name, action, and which time of `PublishTimes` it counts for."""
        return (
            ("close", self._shard.writer.close, "encode_s"),
            ("sync", self._sync, "sync_s"),
            ("hash", self._hash, "hash_s"),
            ("rename", self._rename, "sync_s"),
            ("sync-folder", lambda: sync(self._store.layout.root), "sync_s"),
            ("record", lambda: self._store.record(self.record, self._ids), "sync_s"),
        )

    def _sync(self) -> None:
        self._digest.start()
        sync_shard(self._shard.temporary)

    def _hash(self) -> None:
        digest, size_bytes = self._digest.wait(), size_of(self._shard.temporary)
        self.record = ShardRecord(self._shard.name, len(self._ids), size_bytes, digest, encode_ids(self._ids))

    def _rename(self) -> None:
        self._shard.temporary.rename(self._store.layout.root / self._shard.name)
