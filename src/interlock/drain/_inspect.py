"""Looking at a sink without writing: how far it is, and whether it is whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._catalog import Catalog
from interlock.drain._digests import check_known, has_digest
from interlock.drain._failures import Failure, all_failures
from interlock.drain._idcodes import decode_ids, parse_code
from interlock.drain._ids import first_of_each
from interlock.drain._idsets import IdSet, IdView
from interlock.drain._manifest import Manifests, most_rows
from interlock.drain._storage import opened_storage
from interlock.drain._store import refuse_foreign, storage_errors
from interlock.errors import SinkConflictError, UsageError

if TYPE_CHECKING:
    from interlock._core._protocols import Sink
    from interlock.drain._ids import IdArray
    from interlock.drain._manifest import ShardRecord
    from interlock.drain._run import RunRecord
    from interlock.drain._storage import Storage

_FAILURE_SAMPLE = 10
_MOST_READINGS = 3
"""How often manifests are read where a shard is not there: ranks that close may have replaced it."""


@final
@dataclass(frozen=True, slots=True)
class RankStatus:
    """How far one rank of a sink is.

    Attributes:
        rank: Which.
        rows: Rows in the committed shards of its manifest.
        shards: Those shards.
        is_written: Whether a live process of this machine writes as this rank.
    """

    rank: int
    rows: int
    shards: int
    is_written: bool


@final
@dataclass(frozen=True, slots=True)
class SinkStatus:
    """How far a sink is.

    Attributes:
        sink: As given.
        rows_total: Rows that there will be; None if nobody said.
        rows_committed: Rows in committed shards. Rows that several ranks wrote count once for each until `merge`.
        rows_failed: Rows that failed and were not committed since.
        rows_missing: Rows of the total that are not committed, failed ones too; None if there is no total.
        shards: Committed shards.
        bytes: Bytes of their files.
        run: The run that the dataset is.
        fingerprint: Conditions under which it is made, or None.
        is_written: Whether a live process of this machine is writing to it.
        failures: The first few failed rows.
        ids: `int` or `str`; None before the first shard.
        ranks: Each rank that wrote, lowest first; one if only rank 0 did.
        fsync: `never` if rows were written so that a power cut may take them; else `commit`.
    """

    sink: str
    rows_total: int | None
    rows_committed: int
    rows_failed: int
    rows_missing: int | None
    shards: int
    bytes: int
    run: str
    fingerprint: dict[str, Any] | None
    is_written: bool
    failures: tuple[Failure, ...]
    ids: str | None
    ranks: tuple[RankStatus, ...]
    fsync: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ranks = [asdict(rank) for rank in self.ranks]
        return {**asdict(self), "failures": [failure.as_dict() for failure in self.failures], "ranks": ranks}


@final
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Whether a sink is whole.

    Attributes:
        sink: As given.
        ok: Whether there is no problem and no duplicate. Rows that are still missing are no problem.
        rows: Rows that were found in committed shards.
        shards: Committed shards.
        problems: What is wrong: (shard, what).
        duplicates: Rows whose id was in an earlier row.
        missing: Rows of the total that were not found; None if there is no total.
    """

    sink: str
    ok: bool
    rows: int
    shards: int
    problems: tuple[tuple[str, str], ...]
    duplicates: int
    missing: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "problems": [{"shard": shard, "what": what} for shard, what in self.problems]}


def _existing(text: str) -> tuple[Sink, Storage, RunRecord]:
    sink, storage = opened_storage(text)
    run = refuse_foreign(storage, sink, text)
    if run is None:
        run_file = storage.where(storage.layout.run_file)
        raise SinkConflictError(f"there is nothing at {text}", why=f"{run_file} is not there")
    return sink, storage, run


def read_status(sink: str) -> SinkStatus:
    """Tell how far a sink is, from its manifest; also while it is written. Writes nothing.

    Raises:
        UsageError: There is no such sink, or its manifest is damaged.
        SinkError: It cannot be read.
    """
    with storage_errors(sink, "read"):
        format_, storage, run = _existing(sink)
        manifests = Manifests(storage)
        records = [(home, replace(record, ids="")) for home, record in manifests.records()]
        manifests.refuse_damage()
        failures = _open_failures(format_, storage)
        rows = sum(record.rows for _, record in records)
        wrote = [rank for rank in storage.ranks() if not rank or storage.has(storage.layout.of(rank).manifest)]
        ranks = tuple(_rank_status(storage.of(rank), records) for rank in wrote)
        return SinkStatus(
            sink=sink,
            rows_total=run.total,
            rows_committed=rows,
            rows_failed=len(failures),
            rows_missing=None if run.total is None else max(0, run.total - rows),
            shards=len(records),
            bytes=sum(record.size_bytes for _, record in records),
            run=run.run,
            fingerprint=run.fingerprint,
            is_written=any(rank.is_written for rank in ranks),
            failures=tuple(failures[:_FAILURE_SAMPLE]),
            ids=run.ids,
            ranks=ranks,
            fsync="never"
            if any(storage.has(storage.layout.of(rank).unsynced) for rank in storage.ranks())
            else "commit",
        )


def _rank_status(storage: Storage, records: list[tuple[int, ShardRecord]]) -> RankStatus:
    rank = storage.layout.rank
    rows = [record.rows for home, record in records if home == rank]
    return RankStatus(rank, sum(rows), len(rows), storage.is_locked(storage.layout.lock))


def _open_failures(sink: Sink, storage: Storage) -> list[Failure]:
    failures = all_failures(storage)
    if not failures:
        return []
    committed = _ids_of(sink, storage)
    return [failure for failure in failures.values() if failure.id not in committed]


def read_committed(sink: str) -> IdView:
    """Return the ids of all committed rows of a sink, whichever rank wrote them; also while it is written.

    Raises:
        UsageError: There is no such sink, or its manifest is damaged.
        SinkError: It cannot be read.
    """
    with storage_errors(sink, "read"):
        format_, storage, _ = _existing(sink)
        return IdView(_ids_of(format_, storage))


def _ids_of(sink: Sink, storage: Storage) -> IdSet:
    for _ in range(_MOST_READINGS - 1):
        with suppress(FileNotFoundError):
            return _read_ids(sink, storage)
        storage.refresh()
    return _read_ids(sink, storage)


def _read_ids(sink: Sink, storage: Storage) -> IdSet:
    committed = IdSet()
    manifests = Manifests(storage)
    for home, record in manifests.records():
        at = storage.of(home)
        found, is_hidden = at.size_of(record.shard), False
        if found is None:  # whole and committed: whoever opens the folder next shows it
            found, is_hidden = at.size_of(record.shard, hidden=True), True
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), storage.where(record.shard))
        if record.rows > most_rows(found):  # so that what is claimed takes no memory
            raise SinkConflictError(
                f"shard {storage.where(record.shard)} has {found:,} bytes",
                why=f"the manifest says that it has {record.rows:,} rows",
                hint=f"see what else is damaged with: interlock verify {sink.scheme}:{storage.place}",
            )
        code = parse_code(record.ids, record.rows)
        if code is None:
            committed.add_many(sink.read_shard(at.fetch(record.shard, hidden=is_hidden)).ids)
        else:
            committed.add_code(code)
    manifests.refuse_damage()
    return committed


def verify_sink(sink: str) -> VerifyReport:
    """Read a sink whole and compare it with its manifest: hashes, ids, duplicates, shards that nobody recorded.

    A shard that is seen while a live process of this machine writes is given time: it counts as unrecorded only if none
    does.

    Raises:
        UsageError: There is no such sink, its manifest is damaged, or its digests need a library that is not there.
        SinkError: It cannot be read.
    """
    with storage_errors(sink, "read"):
        format_, storage, run = _existing(sink)
        seen = storage.visible()
        was_written = any(storage.is_locked(storage.layout.of(rank).lock) for rank in storage.ranks())
        storage.refresh()
        manifests = Manifests(storage)
        check = _Verification(format_, storage, run)
        known = set()
        for home, record in manifests.records():
            known.add(record.shard)
            check_known(record.digest)
            check.shard(home, record)
        catalog = Catalog(sink, format_, storage)
        kept = manifests.gone if catalog.is_kept else set()
        check.problems[:0] = manifests.problems + manifests.losses
        check.problems += catalog.problems(known, manifests.gone, is_written=was_written)
        for name in seen:
            if name not in known | kept and not (was_written and storage.layout.owns_name(name)):
                check.problems.append((name, "it is not in the manifest, so none of its rows is committed"))
        return VerifyReport(
            sink=sink,
            ok=not check.problems and not check.duplicates,
            rows=check.rows,
            shards=len(known),
            problems=tuple(check.problems),
            duplicates=check.duplicates,
            missing=None if run.total is None else max(0, run.total - len(check.ids)),
        )


@final
class _Verification:
    """What was found so far."""

    def __init__(self, sink: Sink, storage: Storage, run: RunRecord) -> None:
        self._sink = sink
        self._storage = storage
        self._run = run
        self.problems: list[tuple[str, str]] = []
        self.duplicates = 0
        self.rows = 0
        self.ids = IdSet()

    def shard(self, home: int, record: ShardRecord) -> None:
        """Check one shard; what is wrong with it is a problem, not an exception."""
        try:
            found = self._storage.size_of(record.shard)
            if found is None:
                is_cut = self._storage.of(home).size_of(record.shard, hidden=True) is not None
                what = "it is not shown yet, since a merge or compact was cut: merge again" if is_cut else ""
                self._problem(record, what or "it is missing")
                return
            if found != record.size_bytes:
                self._problem(record, f"it has {found:,} bytes, the manifest says {record.size_bytes:,}")
                return
            path = self._storage.fetch(record.shard)
            if not has_digest(path, record.digest):
                self._problem(record, "its bytes do not match their hash")
                return  # what does not match its hash is not parsed
            content = self._sink.read_shard(path)
            if content.run != self._run.run:
                self._problem(record, "another run wrote it")
            self._check_ids(record, content.ids)
        except UsageError as error:
            self._problem(record, f"it cannot be read: {error.why or error.what}")
        except OSError as error:
            self._problem(record, f"it cannot be read: {error.strerror or error}")

    def _problem(self, record: ShardRecord, what: str) -> None:
        self.problems.append((record.shard, what))

    def _check_ids(self, record: ShardRecord, ids: IdArray) -> None:
        self.rows += len(ids)
        told = decode_ids(record.ids, record.rows) if len(ids) == record.rows else None
        if len(ids) != record.rows:
            self._problem(record, f"it has {len(ids)} rows, the manifest says {record.rows}")
        elif told is not None and not np.array_equal(np.sort(ids), told):
            self._problem(record, "its ids are not those in the manifest")
        repeated = self.ids.contains_many(ids) | ~first_of_each(ids)
        self.duplicates += int(repeated.sum())
        if repeated.any():
            self._problem(record, f"{int(repeated.sum())} of its rows came before, as id {ids[repeated][0]!s}")
        self.ids.add_many(ids)
