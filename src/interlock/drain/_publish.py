"""How a shard becomes visible and then committed, as named steps; a crash between any two loses nothing committed.

A shard that is full is *sealed*: closed, and from then on synced, on a thread of its own, while the next one is
written. So is what was not hashed while it was written. It is committed before the next is closed: so there is one at
most, which holds ids and no rows.

Each lane of a drain has a publisher, so several shards are written, closed, synced and hashed at once. One at a time
are they begun (the schema is stored before the first shard can be seen, and no two have one number) and recorded (a
line of the manifest is whole before the next).

| step | after it |
| --- | --- |
| `schema` | `run.json` knows the columns (first shard only) |
| `open`, `write`, `close` | the bytes are with the system, under a temporary name |
| `sync` | and on the storage; a remote one shows it from here on, and has no step before `record` |
| `hash` | the digest of what was written is known |
| `rename` | readers see the shard; the next run would adopt it |
| `sync-folder` | its name is on the storage |
| `publish` | it is in the catalogue that the sink's readers ask, if there is one, as a Delta log |
| `record` | its line is in the manifest and on the storage: committed |

Without syncing, the steps `sync` and `sync-folder` do nothing, and `record` leaves its line with the system.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from interlock.drain._digests import Digest
from interlock.drain._files import remove, size_of
from interlock.drain._idcodes import encode_ids
from interlock.drain._manifest import ShardRecord
from interlock.drain._schema import Column
from interlock.drain._shardfile import hash_here
from interlock.drain._spans import span
from interlock.drain._times import WRITER_PHASES, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from interlock._core._protocols import ShardWriter
    from interlock._core._rows import Rows
    from interlock.drain._digests import Running
    from interlock.drain._ids import IdArray
    from interlock.drain._store import Store
    from interlock.drain._times import WriterPhase

STEPS = ("schema", "open", "write", "close", "sync", "hash", "rename", "sync-folder", "publish", "record", "end")


def run_step(name: str, action: Callable[[], None]) -> None:  # noqa: ARG001 - tests stop the process at a name
    """Do one step of the protocol."""
    action()


@final
@dataclass(slots=True)
class Published:
    """What is committed."""

    shards: int = 0
    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: Published) -> Published:
        """Return what both are together."""
        return Published(self.shards + other.shards, self.rows + other.rows, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class _OpenShard:
    name: str
    temporary: Path
    writer: ShardWriter
    begun_s: float
    hashed: dict[Path, Running]
    payload_bytes: int = 0
    ids: list[IdArray] = field(default_factory=list)


@final
class Publisher:
    """Writes rows into shards and commits them. Belongs to one thread; others may have theirs on the same store.

    Args:
        store: The folder.
        subject: Which drain, for a trace.

    Attributes:
        number: Which put the rows are from, for a trace.
        done: What is committed.
        times: Where the time of the thread goes, which begins and ends it.
    """

    def __init__(self, store: Store, subject: str) -> None:
        self._store = store
        self._subject = subject
        self._shard: _OpenShard | None = None
        self._sealed: _Publication | None = None
        self.number = 0
        self.done = Published()
        self.times = Stopwatch(WRITER_PHASES)

    @property
    def open_bytes(self) -> int:
        """Bytes of rows in the shard that is open."""
        return self._shard.payload_bytes if self._shard else 0

    @property
    def is_sealed(self) -> bool:
        """Whether a full shard is on its way to the storage."""
        return self._sealed is not None

    @property
    def begun_s(self) -> float | None:
        """When the oldest shard that is not committed was begun, on the monotonic clock; None if there is none."""
        oldest = self._sealed or self._shard
        return oldest.begun_s if oldest else None

    def write(self, ids: IdArray, columns: Mapping[str, Rows]) -> None:
        """Append rows to the open shard, beginning one if need be.

        Raises:
            OSError: The storage refused.
        """
        with self.times.on("encode"):
            if self._shard is None:
                self._shard = self._begin(ids, columns)
            shard = self._shard
            run_step("write", lambda: shard.writer.write(ids, columns))
        shard.ids.append(ids)
        shard.payload_bytes += ids.nbytes + sum(column.nbytes for column in columns.values())

    def seal(self) -> None:
        """Close the open shard, if there is one, and begin to bring it to the storage. There is no sealed one.

        Raises:
            OSError: The storage refused; the shard is not committed.
        """
        shard = self._shard
        if shard is None:
            return
        self._do("close", shard.writer.close, "encode", shard.payload_bytes)
        publication = _Publication(self._store, shard)
        publication.begin()
        self._shard, self._sealed = None, publication

    def finish(self) -> None:
        """Commit the sealed shard, if there is one.

        Blocks: until it is on the storage.

        Raises:
            OSError: The storage refused; the shard is not committed, and no step is tried again.
        """
        publication, self._sealed = self._sealed, None
        if publication is None:
            return
        try:
            for step in publication.steps():
                self._do(*step, publication.payload_bytes)
            with self.times.on("commit"), self._store.committing:
                for step in publication.recording():
                    self._do(*step, publication.payload_bytes)
        except BaseException:
            with suppress(OSError):  # the next run removes it
                remove(publication.temporary)
            raise
        self.done.shards += 1
        self.done.rows += publication.record.rows
        self.done.size_bytes += publication.record.size_bytes
        run_step("end", lambda: None)

    def abandon(self) -> None:
        """Let go of the open shard and remove its temporary. There is no sealed one."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.writer.abandon()
            remove(shard.temporary)

    def _do(self, name: str, action: Callable[[], None], phase: WriterPhase, size_bytes: int) -> None:
        with self.times.on(phase), span(phase, self._subject, self.number, size_bytes):
            run_step(name, action)

    def _begin(self, ids: IdArray, columns: Mapping[str, Rows]) -> _OpenShard:
        store = self._store
        with self.times.on("commit"), store.beginning:
            if store.run.schema is None:
                schema = tuple(Column(name, column.dtype.name, column.shape[1:]) for name, column in columns.items())
                run_step("schema", lambda: store.remember_schema(schema, ids))
            name = store.storage.layout.shard_name(store.run.run, store.next_number)
            store.next_number += 1
        temporary = store.storage.temporary(name)
        hashed = hash_here()
        writers: list[ShardWriter] = []
        run_step("open", lambda: writers.append(store.sink.open_shard(temporary, run=store.run.run)))
        return _OpenShard(name, temporary, writers[0], time.monotonic(), hashed)


@final
class _Publication:
    """One closed shard on its way."""

    def __init__(self, store: Store, shard: _OpenShard) -> None:
        self._store = store
        self._name = shard.name
        self._ids = np.concatenate(shard.ids)
        self._digest = Digest(shard.temporary, known=shard.hashed)
        self._syncing = threading.Thread(target=self._sync_files, name="interlock-drain sync", daemon=True)
        self._sync_error: Exception | None = None
        self.temporary = shard.temporary
        self.begun_s = shard.begun_s
        self.payload_bytes = shard.payload_bytes
        self.record = ShardRecord(shard.name, len(self._ids), 0, "", "")

    def begin(self) -> None:
        """Begin to sync and to hash, on other threads.

        Raises:
            OSError: The storage refused.
        """
        self._digest.start()
        if self._store.syncs:
            with suppress(RuntimeError):  # no thread starts while the interpreter ends: then the step does it
                self._syncing.start()

    def steps(self) -> tuple[tuple[str, Callable[[], None], WriterPhase], ...]:
        """Return the steps after `close` in order: name, action, and what its time counts as."""
        return (
            ("sync", self._sync, "fsync"),
            ("hash", self._hash, "hash"),
            ("rename", lambda: self._store.storage.show(self._name), "commit"),
            ("sync-folder", self._sync_folder, "commit"),
        )

    def recording(self) -> tuple[tuple[str, Callable[[], None], WriterPhase], ...]:
        """Return the steps behind those, which one shard of the store at a time may do."""
        return (
            ("publish", lambda: self._store.publish(self.record, self._ids), "commit"),
            ("record", lambda: self._store.record(self.record, self._ids), "commit"),
        )

    def _sync_files(self) -> None:
        try:
            self._store.storage.bring(self._name)
        except Exception as error:  # noqa: BLE001 - raised by the step
            self._sync_error = error

    def _sync(self) -> None:
        if not self._store.syncs:
            return
        if self._syncing.ident is None:
            self._sync_files()
        else:
            self._syncing.join()
        if self._sync_error is not None:
            raise self._sync_error

    def _hash(self) -> None:
        digest, size_bytes = self._digest.wait(), size_of(self.temporary)
        self.record = ShardRecord(self._name, len(self._ids), size_bytes, digest, encode_ids(self._ids))

    def _sync_folder(self) -> None:
        if self._store.syncs:
            self._store.storage.sync_names(self._name)
