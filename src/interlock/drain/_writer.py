"""The writer thread: waits for rows to land, hands them to the sink, commits shards as they fill or age."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._sites import here
from interlock._waiting import wait
from interlock.drain._hints import storage_hint
from interlock.drain._jobs import Ended, FailJob, FlushJob, Rejected, RowsJob, StopJob, Written
from interlock.drain._null import NullPublisher, NullStore
from interlock.drain._publish import Publisher
from interlock.drain._ragged import chosen, row_ends, rows_with_nan
from interlock.drain._schema import holds_nan
from interlock.drain._spans import span
from interlock.drain._times import count_here
from interlock.drain._verify import check
from interlock.errors import DeviceError, InterlockError, SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interlock._core._rows import Rows
    from interlock.drain._ids import IdArray
    from interlock.drain._jobs import Job, Link
    from interlock.drain._store import Store

_IDLE_S = 3600.0
_EXIT_BOUND_S = 10.0


@final
@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What the drain's user chose for the writer; see `Drain`."""

    shard_bytes: int
    commit_interval_s: float
    nan: Literal["keep", "fail"]
    timeout_s: float


@final
class Writer:
    """The one thread that touches the store after it was opened. It always ends, and then the store is closed.

    Args:
        store: The opened folder, or what stands for it.
        link: Shared with the owner.
        settings: Bounds and policies.
    """

    def __init__(self, store: Store | NullStore, link: Link, settings: WriterSettings) -> None:
        self._store = store
        self._link = link
        self._settings = settings
        self._publisher: Publisher | NullPublisher
        if isinstance(store, NullStore):
            self._publisher = store.publisher()
        else:
            self._publisher = Publisher(store, link.subject)
        self._tick = 0
        self._sealed_tick = 0
        self._unsynced_since_s: float | None = None
        self.done = self._publisher.done
        self.times = self._publisher.times
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"interlock-drain {store.text}", daemon=True)

    def start(self) -> None:
        """Start the thread, and have it stopped when the interpreter exits."""
        _register(self)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Make the thread give up what is not committed; return whether it ended within `timeout_s`."""
        self._link.stop.set()
        self._link.jobs.post(StopJob())
        if threading.current_thread() is not self._thread:  # a collector may run on it
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def lost_rows(self) -> int:
        """Rows handed over that are neither committed nor recorded as failed."""
        return self._link.accepted_rows - self._link.rejected_rows - self.done.rows

    def _run(self) -> None:
        self.times.begin("check")
        count_here(self.times)
        try:
            while not self._link.stop.is_set():
                job = self._next()
                if job is not None:
                    self._do(job)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner must hear of it
            self._link.failure = self._explain(error)
        finally:
            self._end()

    def _next(self) -> Job | None:
        """Return the next job; commit instead, and return None, when there is none or rows are old enough."""
        since_s = self._publisher.begun_s if self._publisher.begun_s is not None else self._unsynced_since_s
        if since_s is None:
            self._link.doing = "waiting for rows"
            return self._wait_for_job(_IDLE_S)
        left_s = since_s + self._settings.commit_interval_s - time.monotonic()
        if self._publisher.is_sealed and left_s > 0:
            job = self._link.jobs.take_nowait()
            if job is None:
                self._finish_shard()
            return job
        job = self._wait_for_job(left_s) if left_s > 0 else None
        if job is None:
            self._commit()
        return job

    def _wait_for_job(self, timeout_s: float) -> Job | None:
        with self.times.on("idle"):
            return self._link.jobs.wait_take(timeout_s)

    def _do(self, job: Job) -> None:
        if isinstance(job, RowsJob):
            self._write(job)
            self._tick = job.tick
        elif isinstance(job, FailJob):
            self._reject(job.ids, job.reason)
            self._tick = job.tick
            self._link.written.reach(job.tick)
        elif isinstance(job, FlushJob):
            self._tick = job.tick
            self._commit()
        if not self._publisher.open_bytes and self._unsynced_since_s is None:  # all is in shards that are full
            self._sealed_tick = self._tick
            if not self._publisher.is_sealed:
                self._link.committed.reach(self._tick)

    def _write(self, job: RowsJob) -> None:
        rows = _describe(job.ids)
        columns = landed = self._land(job, rows)
        check(job, landed, "when it had landed")
        ids = job.ids
        if self._settings.nan == "fail":
            ids, columns = self._without_nan(ids, columns)
        self._link.doing = f"writing {rows}"
        self._publisher.number = job.number
        with span("write", self._link.subject, job.number, sum(column.nbytes for column in columns.values())):
            self._write_in_shards(ids, columns)
        check(job, landed, "when it was written")
        del columns, landed
        job.readers.clear()
        self._link.written_rows += len(ids)
        self._link.written.reach(job.tick)
        self._link.owner.post(Written(job))

    def _land(self, job: RowsJob, rows: str) -> Mapping[str, Rows]:
        self._link.doing = f"waiting for the copy of {rows} to land"
        with self.times.on("land"), span("wait for copy", self._link.subject, job.number):
            wait(job.landing.fence, timeout_s=self._settings.timeout_s, what=f"the copy of {rows}")
        try:
            columns = {name: read() for name, read in job.readers.items()}
        except UsageError as error:
            raise UsageError(
                f"{error.what}, among {rows}",
                why=error.why,
                hint=f"{error.hint}; put tells it at once of lengths that are on the host".removeprefix("; "),
            ) from error
        except Exception as error:
            raise DeviceError(
                f"the values of {rows} were lost", why=f"{type(error).__name__}: {error}", hint="see the cause"
            ) from error
        job.landing.fence = Fence.EMPTY
        if observed():
            for region in job.regions:
                emit(Access(host_timeline(), region, "read", "drain writer", site=here()))
        return columns

    def _write_in_shards(self, ids: IdArray, columns: Mapping[str, Rows]) -> None:
        """Write rows, sealing each shard that is full."""
        ends = row_ends(ids, columns)
        start = 0
        while start < len(ids):
            room_bytes = self._settings.shard_bytes - self._publisher.open_bytes
            stop = max(start + 1, int(np.searchsorted(ends, ends[start] + room_bytes, side="right")) - 1)
            self._publisher.write(ids[start:stop], {name: column[start:stop] for name, column in columns.items()})
            start = stop
            next_bytes = ends[start + 1] - ends[start] if start < len(ids) else ends[-1] // len(ids)
            if self._publisher.open_bytes + next_bytes > self._settings.shard_bytes:
                self._seal_shard()

    def _without_nan(self, ids: IdArray, columns: Mapping[str, Rows]) -> tuple[IdArray, Mapping[str, Rows]]:
        """Record rows with NaN as failed and return the others."""
        good = np.ones(len(ids), np.bool_)
        for name, column in columns.items():
            if holds_nan(column.dtype):
                bad = good & rows_with_nan(column)
                if bad.any():
                    self._reject(ids[bad], f"NaN in output {name!r}")
                    self._link.rejected_rows += int(bad.sum())
                    self._link.owner.post(Rejected(ids[bad]))
                    good &= ~bad
        if good.all():
            return ids, columns
        return ids[good], {name: chosen(column, good) for name, column in columns.items()}

    def _reject(self, ids: IdArray, reason: str) -> None:
        self._store.failures.record(ids, reason)
        if self._unsynced_since_s is None:
            self._unsynced_since_s = time.monotonic()

    def _commit(self) -> None:
        """Commit the open shard and everything before the last tick."""
        self._seal_shard()
        self._finish_shard()
        self._link.written.reach(self._tick)
        self._link.committed.reach(self._tick)

    def _seal_shard(self) -> None:
        """Close the open shard, which is brought to the storage from now on; commit the one before."""
        self._finish_shard()
        with self.times.on("commit"):
            self._store.failures.sync()
        self._unsynced_since_s = None
        self._publisher.seal()
        self._sealed_tick = self._tick  # jobs before the one that filled the shard
        if not self._publisher.is_sealed and self._tick:
            self._link.committed.reach(self._tick)

    def _finish_shard(self) -> None:
        self._link.doing = f"committing a shard of {self._store.text}"
        if self._publisher.is_sealed:
            self._publisher.finish()
            if self._sealed_tick:
                self._link.committed.reach(self._sealed_tick)

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, InterlockError):
            return error
        reason = f"{type(error).__name__}: {error}"
        hint = "what was committed stays; run again to go on"
        if isinstance(error, OSError):
            reason = f"{error.strerror or error}"
            step = storage_hint(error, self._store.place)
            hint = f"{step}; {hint}" if step else hint
        failure = SinkError(f"writing to {self._store.text} failed", why=reason, hint=hint)
        failure.__cause__ = error
        return failure

    def _end(self) -> None:
        """Let go of everything but a shard that is full; whoever waits hears why."""
        try:
            self._finish_shard()
        except Exception as error:  # noqa: BLE001 - told, unless what happened before says more
            self._link.failure = self._link.failure or self._explain(error)
        with suppress(Exception):  # the storage failed already: what is left is a temporary, which the next run removes
            self._publisher.abandon()
        with suppress(Exception):
            self._store.close()
        cause = self._link.failure or SinkError(f"{self._store.text} was closed before these rows were committed")
        self._link.written.fail(cause)
        self._link.committed.fail(cause)
        self._link.owner.post(Ended())
        _live.discard(self)
        self.times.end()


def _describe(ids: IdArray) -> str:
    first, last = ids[0], ids[-1]
    return f"row {first!s}" if len(ids) == 1 else f"{len(ids)} rows ({first!s} to {last!s})"


_live: set[Writer] = set()
_registered = False


def _register(writer: Writer) -> None:
    global _registered  # noqa: PLW0603 - one hook for the process, and none before the first drain
    if not _registered:
        atexit.register(_stop_all)
        _registered = True
    _live.add(writer)


def _stop_all() -> None:
    """At exit: end the writers of drains that nobody closed, in bounded time."""
    until_s = time.monotonic() + _EXIT_BOUND_S
    writers = [writer for writer in tuple(_live) if writer.pid == os.getpid()]
    for writer in writers:
        writer.stop(0.0)
    for writer in writers:
        abandon(writer, max(0.0, until_s - time.monotonic()))


def leave(writer: Writer) -> bool:
    """Do not wait at exit for a writer that hangs, and was waited for: the system ends it, and its locks, with us."""
    _live.discard(writer)
    return False


def abandon(writer: Writer, timeout_s: float) -> None:
    """End the writer of a drain that was not closed; say how many rows that loses."""
    writer.stop(timeout_s)
    warnings.warn(
        f"a drain was not closed: {writer.lost_rows} rows that were put are not committed; use it in a with block",
        ResourceWarning,
        stacklevel=2,
    )


def forget(writer: Writer) -> None:
    """End the writer of a drain that was dropped without being closed."""
    if writer.pid == os.getpid():
        abandon(writer, 0.0)
