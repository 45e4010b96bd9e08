"""Looking at a sink without writing: how far it is, and whether it is whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._digests import digest_of
from interlock.drain._failures import Failure, read_failures
from interlock.drain._files import size_of
from interlock.drain._ids import IdSet, decode_ids, first_of_each
from interlock.drain._layout import is_locked
from interlock.drain._manifest import read_manifest, scan_manifest
from interlock.drain._store import opened_path, refuse_foreign, storage_errors
from interlock.errors import SinkConflictError, UsageError

if TYPE_CHECKING:
    from interlock._core._protocols import Sink
    from interlock.drain._ids import IdArray
    from interlock.drain._layout import Layout
    from interlock.drain._manifest import ShardRecord
    from interlock.drain._run import RunRecord

_FAILURE_SAMPLE = 10


@final
@dataclass(frozen=True, slots=True)
class SinkStatus:
    """How far a sink is.

    Attributes:
        sink: As given.
        rows_total: Rows that there will be; None if nobody said.
        rows_committed: Rows in committed shards.
        rows_failed: Rows that failed and were not committed since.
        rows_missing: Rows of the total that are not committed, failed ones too; None if there is no total.
        shards: Committed shards.
        bytes: Bytes of their files.
        run: The run that the dataset is.
        fingerprint: Conditions under which it is made, or None.
        is_written: Whether a live process is writing to it.
        failures: The first few failed rows.
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "failures": [failure.as_dict() for failure in self.failures]}


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


def _existing(text: str) -> tuple[Sink, Layout, RunRecord]:
    sink, layout = opened_path(text)
    run = refuse_foreign(layout, sink, text)
    if run is None:
        raise SinkConflictError(f"there is nothing at {text}", why=f"{layout.run_file} is not there")
    return sink, layout, run


def read_status(sink: str) -> SinkStatus:
    """Tell how far a sink is, from its manifest; also while it is written. Writes nothing.

    Raises:
        UsageError: There is no such sink, or its manifest is damaged.
        SinkError: It cannot be read.
    """
    with storage_errors(sink, "read"):
        format_, layout, run = _existing(sink)
        records = read_manifest(layout).records
        failures = _open_failures(format_, layout, records)
        rows = sum(record.rows for record in records)
        return SinkStatus(
            sink=sink,
            rows_total=run.total,
            rows_committed=rows,
            rows_failed=len(failures),
            rows_missing=None if run.total is None else max(0, run.total - rows),
            shards=len(records),
            bytes=sum(record.size_bytes for record in records),
            run=run.run,
            fingerprint=run.fingerprint,
            is_written=is_locked(layout.lock),
            failures=tuple(failures[:_FAILURE_SAMPLE]),
        )


def _open_failures(sink: Sink, layout: Layout, records: list[ShardRecord]) -> list[Failure]:
    failures, _ = read_failures(layout.failures)
    if not failures:
        return []
    committed = IdSet()
    for record in records:
        ids = decode_ids(record.ids, record.rows)
        committed.add_many(sink.read_shard(layout.root / record.shard).ids if ids is None else ids)
    return [failure for failure in failures.values() if failure.id not in committed]


def verify_sink(sink: str) -> VerifyReport:
    """Read a sink whole and compare it with its manifest: hashes, ids, duplicates, shards that nobody recorded.

    A shard that is seen while a live process writes is given time: it counts as unrecorded only if nobody writes.

    Raises:
        UsageError: There is no such sink, or its manifest is damaged.
        SinkError: It cannot be read.
    """
    with storage_errors(sink, "read"):
        format_, layout, run = _existing(sink)
        seen = layout.visible()
        was_written = is_locked(layout.lock)
        manifest = scan_manifest(layout)
        check = _Verification(format_, layout, run)
        check.problems += [(layout.manifest.name, problem) for problem in manifest.problems]
        for record in manifest.records:
            check.shard(record)
        known = {record.shard for record in manifest.records}
        for name in seen:
            if name not in known and not (was_written and layout.owns_name(name)):
                check.problems.append((name, "it is not in the manifest, so none of its rows is committed"))
        return VerifyReport(
            sink=sink,
            ok=not check.problems and not check.duplicates,
            rows=check.rows,
            shards=len(manifest.records),
            problems=tuple(check.problems),
            duplicates=check.duplicates,
            missing=None if run.total is None else max(0, run.total - len(check.ids)),
        )


@final
class _Verification:
    """What was found so far."""

    def __init__(self, sink: Sink, layout: Layout, run: RunRecord) -> None:
        self._sink = sink
        self._layout = layout
        self._run = run
        self.problems: list[tuple[str, str]] = []
        self.duplicates = 0
        self.rows = 0
        self.ids = IdSet()

    def shard(self, record: ShardRecord) -> None:
        """Check one shard; what is wrong with it is a problem, not an exception."""
        path = self._layout.root / record.shard
        try:
            if not path.exists():
                self._problem(record, "it is missing")
                return
            if not self._has_its_bytes(record):
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

    def _has_its_bytes(self, record: ShardRecord) -> bool:
        path = self._layout.root / record.shard
        found = size_of(path)
        if found != record.size_bytes:
            self._problem(record, f"it has {found:,} bytes, the manifest says {record.size_bytes:,}")
            return False
        if digest_of(path) != record.sha256:
            self._problem(record, "its bytes do not match their hash")
            return False
        return True

    def _check_ids(self, record: ShardRecord, ids: IdArray) -> None:
        self.rows += len(ids)
        told = decode_ids(record.ids, record.rows)
        if len(ids) != record.rows:
            self._problem(record, f"it has {len(ids)} rows, the manifest says {record.rows}")
        elif told is not None and not np.array_equal(np.sort(ids), told):
            self._problem(record, "its ids are not those in the manifest")
        repeated = self.ids.contains_many(ids) | ~first_of_each(ids)
        self.duplicates += int(repeated.sum())
        if repeated.any():
            self._problem(record, f"{int(repeated.sum())} of its rows came before, as id {ids[repeated][0]!s}")
        self.ids.add_many(ids)
