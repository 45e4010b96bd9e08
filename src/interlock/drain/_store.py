"""The folder of a sink, opened for writing: refused, begun, or taken up where a crash left it.

What is not in the manifest is not committed, whatever lies in the folder. A shard that a crash left between its rename
and its record is whole (it was synced before) and is *adopted*; anything doubtful goes to quarantine with a warning.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._digests import digest_of
from interlock.drain._failures import FailureLog
from interlock.drain._files import remove, size_of, sync
from interlock.drain._ids import IdArray, IdSet, decode_ids, encode_ids, first_of_each, kind_of
from interlock.drain._layout import FolderLock, Layout, parse_name
from interlock.drain._manifest import LineLog, ShardRecord, cut_torn_line, read_manifest, scan_manifest
from interlock.drain._run import RunRecord, check_fingerprint
from interlock.drain._sinks import open_sink
from interlock.errors import SinkConflictError, SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock._core._protocols import Sink
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
            hint="check the path, its permissions and the space left",
        ) from error


@final
class Store:
    """A sink's folder in the hands of its one writer.

    Args:
        text: The sink, as `parquet:out`.
        fingerprint: As what JSON makes of it, or None.
        total: Rows that there will be, or None.
        restart: Discard what is there, if it is ours.

    Attributes:
        text: As given.
        sink: The format.
        layout: The paths.
        run: What the dataset is.
        records: The committed shards, oldest first.
        committed: Ids of the committed rows.
        resumed_rows: How many of them were there at the start.
        failures: Failures of rows.
        next_number: Number of the next shard.

    Raises:
        SinkConflictError: The folder holds something else, was written under other conditions, is being written, or
            lost a committed shard. Nothing was touched.
        SinkError: The storage refused.
    """

    def __init__(self, text: str, *, fingerprint: dict[str, Any] | None, total: int | None, restart: bool) -> None:
        self.text = text
        self.sink: Sink
        self.sink, root = open_sink(text)
        self.layout = Layout(root, self.sink.suffix)
        self.records: list[ShardRecord] = []
        self.committed = IdSet()
        with storage_errors(text, "open"):
            refuse_foreign(self.layout, self.sink, text)
            self.layout.make()
            self._lock = FolderLock(self.layout.lock, text)
            try:
                self._open(fingerprint, total, restart=restart)
            except BaseException:
                self._lock.release()
                raise
        self.resumed_rows = len(self.committed)

    @property
    def place(self) -> str:
        """The folder, for messages."""
        return str(self.layout.root)

    def _open(self, fingerprint: dict[str, Any] | None, total: int | None, *, restart: bool) -> None:
        run = refuse_foreign(self.layout, self.sink, self.text)
        if restart and run is not None:
            _wipe(self.layout, run)
            run = None
        if run is None:
            run = RunRecord.new(self.sink.scheme, fingerprint, total)
            run.save(self.layout)
        self.run = run
        manifest = read_manifest(self.layout)
        if manifest.records or any(map(self.layout.owns_name, self.layout.visible())):  # those may be adopted
            check_fingerprint(run.fingerprint, fingerprint, self.text)
        self._check_shards(manifest.records)
        cut_torn_line(self.layout.manifest, manifest.whole_bytes)
        self.records = manifest.records
        for record in self.records:
            self.committed.add_many(self._ids_of(record))
        for leftover in self.layout.temporaries.iterdir():
            remove(leftover)
        self._manifest = LineLog(self.layout.manifest)
        self.failures = FailureLog(self.layout.failures)
        self._take_up_unrecorded()
        self._refresh_run(fingerprint, total)
        self.next_number = 1 + max((number for _, number in self._numbers()), default=-1)

    def _refresh_run(self, fingerprint: dict[str, Any] | None, total: int | None) -> None:
        """Store what may change between runs; while nothing is committed, that is everything but the run."""
        run = self.run
        fresh = RunRecord(
            run.sink,
            run.run,
            run.fingerprint if self.records or fingerprint is None else fingerprint,
            run.total if total is None else total,
            run.schema if self.records else None,
            run.ids if self.records else None,
        )
        if fresh != run:
            self.run = fresh
            fresh.save(self.layout)

    def remember_schema(self, schema: Schema, ids: IdArray) -> None:
        """Store columns and kind of ids, before the first shard that has them can be seen."""
        self.run = self.run.with_schema(schema, kind_of(ids))
        self.run.save(self.layout)

    def record(self, record: ShardRecord, ids: IdArray) -> None:
        """Commit a shard that is in place and synced: append its line and wait until that is on the storage."""
        self._manifest.append(record.line())
        self._manifest.sync()
        self.records.append(record)
        self.committed.add_many(ids)
        self.failures.forget(ids)

    def close(self) -> None:
        """Let somebody else write."""
        self._manifest.close()
        self.failures.close()
        self._lock.release()

    def _check_shards(self, records: list[ShardRecord]) -> None:
        for record in records:
            path = self.layout.root / record.shard
            found = size_of(path) if path.exists() else None
            if found != record.size_bytes:
                state = "is missing" if found is None else f"has {found:,} bytes"
                raise SinkConflictError(
                    f"shard {path} {state}",
                    why=f"the manifest says that it has {record.size_bytes:,} bytes",
                    hint=f"see what else is damaged with: interlock verify {self.text}",
                )

    def _ids_of(self, record: ShardRecord) -> IdArray:
        try:
            ids = decode_ids(record.ids, record.rows)
            return self.sink.read_shard(self.layout.root / record.shard).ids if ids is None else ids
        except UsageError as error:
            raise SinkConflictError(
                f"the ids of shard {record.shard} cannot be read",
                why=str(error),
                hint=f"see what is damaged with: interlock verify {self.text}",
            ) from error

    def _numbers(self) -> Iterator[tuple[str, int]]:
        for name in (*self.layout.visible(), *(record.shard for record in self.records)):
            parsed = parse_name(name)
            if parsed is not None:
                yield parsed[0], parsed[1]

    def _take_up_unrecorded(self) -> None:
        known = {record.shard for record in self.records}
        for name in self.layout.visible():
            if name in known or not self.layout.owns_name(name):
                continue
            doubt = self._adopt(name)
            if doubt:
                self._isolate(name, doubt)

    def _adopt(self, name: str) -> str:
        """Commit a shard that a crash left without its record; return why not if it cannot be."""
        path = self.layout.root / name
        try:
            content = self.sink.read_shard(path)
            sync(self.layout.root)
            record = ShardRecord(name, len(content.ids), size_of(path), digest_of(path), encode_ids(content.ids))
        except (UsageError, OSError) as error:
            return f"it cannot be read: {error}"
        if content.run != self.run.run:
            return "another run wrote it"
        if not content.ids.size or not bool(first_of_each(content.ids).all()):
            return "it has no rows, or one of them twice"
        if self.records and kind_of(content.ids) != self.run.ids:
            return "its ids are of another kind"
        if bool(np.any(self.committed.contains_many(content.ids))):
            return "rows of it are in other shards"
        self.record(record, content.ids)
        return ""

    def _isolate(self, name: str, doubt: str) -> None:
        place = self.layout.quarantine / f"{name}.quarantined"
        remove(place)
        (self.layout.root / name).rename(place)
        sync(self.layout.root)
        warnings.warn(
            f"shard {name} of {self.text} is not in the manifest and was moved to {place}: {doubt}",
            RuntimeWarning,
            stacklevel=2,
        )


def refuse_foreign(layout: Layout, sink: Sink, text: str) -> RunRecord | None:
    """Return the record of the run in a folder, or None if the folder is fit for a new one. Touches nothing.

    Raises:
        SinkConflictError: The folder holds something that is not ours, or is another kind of sink.
    """
    if layout.root.exists() and not layout.root.is_dir():
        raise SinkConflictError(f"cannot write to {text}", why=f"{layout.root} is a file", hint="name a folder")
    run = RunRecord.read(layout)
    if run is None and not layout.looks_ours():
        raise SinkConflictError(
            f"cannot write to {text}",
            why=f"{layout.root} is not empty and was written by something else",
            hint="name an empty or a new folder; nothing was touched",
        )
    if run is not None and run.sink != sink.scheme:
        raise SinkConflictError(
            f"cannot use {text}",
            why=f"{layout.root} holds {run.sink} shards",
            hint=f"use {run.sink}:{layout.root}, or another folder",
        )
    return run


def _wipe(layout: Layout, run: RunRecord) -> None:
    """Remove what is ours; what others put into the folder stays."""
    ours = {record.shard for record in scan_manifest(layout).records}
    for log in (layout.manifest, layout.failures):
        remove(log)
    sync(layout.control)
    for name in layout.visible():
        parsed = parse_name(name)
        if layout.owns_name(name) and (name in ours or (parsed is not None and parsed[0] == run.run[:8])):
            remove(layout.root / name)
    for folder in (layout.temporaries, layout.quarantine):
        for entry in folder.iterdir():
            remove(entry)


def opened_path(text: str) -> tuple[Sink, Layout]:
    """Return the format and the paths that a sink's text names, without touching the folder."""
    sink, root = open_sink(text)
    return sink, Layout(root, sink.suffix)
