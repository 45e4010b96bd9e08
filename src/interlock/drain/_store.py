"""The folder of a sink, opened for writing by one rank: refused, begun, or taken up where a crash left it."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, final

from interlock.drain._catalog import Catalog
from interlock.drain._failures import FailureLog
from interlock.drain._hints import storage_hint
from interlock.drain._holdings import HeldShard, Holdings
from interlock.drain._ids import IdArray, kind_of
from interlock.drain._layout import parse_name
from interlock.drain._manifest import Manifests, ShardRecord
from interlock.drain._powercut import settle_unsynced
from interlock.drain._run import RunRecord, forget_schemas, other_schema
from interlock.drain._storage import Storage, opened_storage
from interlock.drain._unsynced import note_unsynced
from interlock.errors import SinkConflictError, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from interlock._core._protocols import Sink
    from interlock.drain._idsets import IdSet
    from interlock.drain._schema import Schema


@contextmanager
def storage_errors(text: str, doing: str) -> Iterator[None]:
    """Turn what the storage refuses into one clear line."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"cannot {doing} {text}",
            why=f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}",
            hint=storage_hint(error, text.partition(":")[2]) or "check the path, its permissions and the space left",
        ) from error


@final
class Store:
    """A sink's folder in the hands of one of its writers.

    Args:
        text: The sink, as `parquet:out`.
        fingerprint: As what JSON makes of it, or None.
        total: Rows that there will be, or None.
        outputs: What is done to outputs before they are stored, in words, by name; None if nobody knows.
        restart: Discard what is there, if it is ours.
        rank: Which of the writers.
        timeout_s: How long to wait while others open or rewrite.
        syncs: Whether shards and their lines are brought to the storage before they count.

    Attributes:
        text: As given.
        sink: The format.
        storage: The folder.
        run: What the dataset is.
        committed: Ids of the rows that this rank committed, and of all that were there at the start.
        resumed_rows: How many of them were there at the start.
        syncs: As given; always where there is no other way.
        failures: Failures of rows.
        next_number: Number of the next shard.
        beginning: Held by whoever begins a shard: for the schema and its number.
        committing: Held by whoever records a shard or a failure.

    Raises:
        SinkConflictError: The folder holds something else, was written under other conditions, is being written, or
            lost a committed shard. Nothing was touched.
        SinkError: The storage refused.
    """

    def __init__(
        self,
        text: str,
        *,
        fingerprint: dict[str, Any] | None,
        total: int | None,
        restart: bool,
        outputs: dict[str, list[str]] | None = None,
        rank: int = 0,
        timeout_s: float = 60.0,
        syncs: bool = True,
    ) -> None:
        self.text = text
        self.beginning = threading.Lock()
        self.committing = threading.Lock()
        self.sink: Sink
        self.storage: Storage
        self.sink, self.storage = opened_storage(text, rank=rank, timeout_s=timeout_s)
        self.syncs = syncs or self.storage.is_durable
        layout = self.storage.layout
        with storage_errors(text, "open"), ExitStack() as held:
            refuse_foreign(self.storage, self.sink, text)
            self.storage.make()
            held.callback(self.storage.lock(layout.opening, text, wait_s=timeout_s).release)
            self.storage.make()  # again: a merge that we waited for removes the folders of ranks
            with ExitStack() as ours:
                ours.callback(self.storage.lock(layout.lock, text).release)
                self.storage.refresh()
                dead = dead_ranks(self.storage, text, set(self.storage.ranks()) - {rank})
                wanted = RunRecord.new(self.sink.scheme, fingerprint, total, outputs)
                self._open(wanted, ours, restart=restart, dead=dead)
                self._ours = ours.pop_all()
        self.resumed_rows = len(self.committed)

    @property
    def place(self) -> str:
        """The folder, for messages."""
        return self.storage.place

    @property
    def shards(self) -> list[HeldShard]:
        """The committed shards, as far as this rank knows."""
        return self._holdings.shards

    @property
    def committed(self) -> IdSet:
        """Ids of the committed rows, as far as this rank knows."""
        return self._holdings.committed

    @property
    def has_peers(self) -> bool:
        """Whether other ranks wrote here."""
        self.storage.refresh()
        return len(self.storage.ranks()) > 1

    def _open(self, wanted: RunRecord, ours: ExitStack, *, restart: bool, dead: set[int]) -> None:
        storage = self.storage
        mine = dead | {storage.layout.rank}
        alone = mine >= set(storage.ranks())
        run = refuse_foreign(storage, self.sink, self.text)
        if restart and run is not None:
            _require_alone(self.text, alone=alone)
            Catalog(self.text, self.sink, storage).discard(run.run)
            _wipe(storage, run)
            run = None
        if run is None:
            run = wanted
            run.save(storage)
        self.run = run
        for one in mine:
            settle_unsynced(self.text, storage.of(one), keep=not self.syncs)
        self._holdings = Holdings(self.text, self.sink, storage)
        if not alone or any(map(storage.layout.owns_name, storage.visible())):  # those may be adopted
            run.check_conditions(wanted, self.text)
        self._holdings.load(run)
        if self.shards:
            run.check_conditions(wanted, self.text)
        self._holdings.mend(mine, run)
        if not self.syncs:
            note_unsynced(storage)
        self._manifest = storage.log(storage.layout.manifest)
        ours.callback(self._manifest.close)
        if self.syncs:  # what a killed process appended, and did not live to sync
            self._manifest.sync()
        self.failures = FailureLog(storage, syncs=self.syncs)
        ours.callback(self.failures.close)
        if alone:
            self._refresh_run(wanted)
        self.next_number = 1 + max(self._holdings.numbers(storage.layout.rank), default=-1)

    def _refresh_run(self, wanted: RunRecord) -> None:
        """Store what may change between runs; while nothing is committed, that is everything but the run."""
        run = self.run
        if not self.shards:
            forget_schemas(self.storage)
        fresh = RunRecord(
            run.sink,
            run.run,
            run.fingerprint if self.shards or wanted.fingerprint is None else wanted.fingerprint,
            run.total if wanted.total is None else wanted.total,
            run.schema if self.shards else None,
            run.ids if self.shards else None,
            run.outputs if self.shards or wanted.outputs is None else wanted.outputs,
        )
        if fresh != run:
            self.run = fresh
            fresh.save(self.storage)

    def remember_schema(self, schema: Schema, ids: IdArray) -> None:
        """Store columns and kind of ids, before the first shard that has them can be seen.

        Raises:
            SinkConflictError: Another rank writes rows of another form.
        """
        mine = self.run.with_schema(schema, kind_of(ids))
        mine.save_schema(self.storage)
        other = other_schema(self.storage, mine)
        if other:
            self.run.save_schema(self.storage)
            raise SinkConflictError(
                f"rank {self.storage.layout.rank} makes other rows than the rest of {self.text}",
                why=other,
                hint="make the same outputs on every rank, or use another sink",
            )
        self.run = mine

    def publish(self, record: ShardRecord, ids: IdArray) -> None:
        """Tell the sink's catalogue, if it has one, of a shard that is in place and synced."""
        self._holdings.catalog.add(HeldShard.of(self.storage.layout.rank, record, ids))

    def record(self, record: ShardRecord, ids: IdArray) -> None:
        """Commit a shard that is in place and synced: append its line and wait until that is on the storage.

        With `committing` held.

        Raises:
            OSError: The storage refused. The line is taken back; the next run finds the shard whole, and adopts it.
        """
        self._manifest.append(record.line())
        if self.syncs:
            self._manifest.sync()
        self._holdings.add(self.storage.layout.rank, record, ids)
        self.failures.forget(ids)

    def close(self) -> None:
        """Let somebody else write, whatever the storage says."""
        self._ours.close()


def dead_ranks(storage: Storage, text: str, ranks: Iterable[int]) -> set[int]:
    """Return those of `ranks` of which no writer lives, with `opening` held: so none begins, and they stay dead.

    Their locks are not held meanwhile: each takes a descriptor, and there may be more ranks than a process has of them.
    """
    return {rank for rank in ranks if _is_dead(storage.of(rank), text)}


def _is_dead(storage: Storage, text: str) -> bool:
    try:
        storage.lock(storage.layout.lock, text).release()
    except SinkConflictError:
        return False
    return True


def _require_alone(text: str, *, alone: bool) -> None:
    if not alone:
        raise SinkConflictError(
            f"cannot begin {text} anew",
            why="another rank writes to it",
            hint="stop the other ranks first",
        )


def refuse_foreign(storage: Storage, sink: Sink, text: str) -> RunRecord | None:
    """Return the record of the run in a folder, or None if the folder is fit for a new one. Touches nothing.

    Raises:
        SinkConflictError: The folder holds something that is not ours, or is another kind of sink.
    """
    if storage.is_file():
        raise SinkConflictError(f"cannot write to {text}", why=f"{storage.place} is a file", hint="name a folder")
    run = RunRecord.read(storage)
    is_foreign = run is None and not storage.looks_ours()
    if is_foreign:
        run = RunRecord.read(storage)  # another rank may have begun it just now
    if is_foreign and run is None:
        raise SinkConflictError(
            f"cannot write to {text}",
            why=f"{storage.place} is not empty and was written by something else",
            hint="name an empty or a new folder; nothing was touched",
        )
    if run is not None and run.sink != sink.scheme:
        raise SinkConflictError(
            f"cannot use {text}",
            why=f"{storage.place} holds {run.sink} shards",
            hint=f"use {run.sink}:{storage.place}, or another folder",
        )
    return run


def _wipe(storage: Storage, run: RunRecord) -> None:
    """Remove what is ours; what others put into the folder stays."""
    ours = {record.shard for _, record in Manifests(storage).records()}
    ranks = [storage.of(rank) for rank in storage.ranks()]
    for one in ranks:
        storage.remove(one.layout.manifest, one.layout.failures, one.layout.unsynced)
    forget_schemas(storage)
    for name in storage.visible():
        parsed = parse_name(name)
        is_ours = name in ours or (parsed is not None and parsed.run == run.run[:8])
        if storage.layout.owns_name(name) and is_ours:
            storage.remove_shard(name)
    for one in ranks:
        one.clear()
        one.remove(one.layout.quarantine)
    storage.make()
