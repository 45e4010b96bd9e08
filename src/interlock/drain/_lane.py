"""A lane: a thread that takes rows, waits until they land, hands them to the sink, and commits its shards.

Each lane has a shard of its own open, and one on its way to the storage (see `_publish`); what lanes share is in the
store, behind two locks.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._sites import here
from interlock._waiting import wait
from interlock.drain._hints import storage_hint
from interlock.drain._jobs import FailJob, FlushJob, Rejected, RowsJob, Written
from interlock.drain._null import NullPublisher, NullStore
from interlock.drain._publish import Publisher
from interlock.drain._ragged import chosen, row_ends, rows_with_nan
from interlock.drain._schema import holds_nan
from interlock.drain._spans import span
from interlock.drain._times import count_here
from interlock.drain._verify import check
from interlock.errors import DeviceError, InterlockError, SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from interlock._core._rows import Rows
    from interlock.drain._ids import IdArray
    from interlock.drain._jobs import Job, Order
    from interlock.drain._link import Link
    from interlock.drain._store import Store

_IDLE_S = 3600.0


@final
@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What the drain's user chose for the lanes; see `Drain`."""

    writers: int | Literal["auto"]
    budget_bytes: int
    shard_bytes: int
    commit_interval_s: float
    nan: Literal["keep", "fail"]
    timeout_s: float


@final
class Lane:
    """One thread that writes. It always ends.

    Args:
        store: The opened folder, or what stands for it.
        link: Shared with the owner.
        settings: Bounds and policies.
        failed: Called on the thread with the reason, if it gives up.
        ended: Called on the thread, last.

    Attributes:
        done: What it committed.
        times: Where its time goes.
        written_rows: Rows that it handed to the sink.
        written_bytes: And their bytes.
        written_jobs: And in how many jobs.
        rejected_rows: Rows that it recorded as failed in place of writing them.
        ended: Whether it is at its end.
    """

    def __init__(
        self,
        store: Store | NullStore,
        link: Link,
        settings: WriterSettings,
        failed: Callable[[BaseException], None],
        ended: Callable[[Lane], None],
    ) -> None:
        self._store = store
        self._link = link
        self._settings = settings
        self._failed = failed
        self._ended = ended
        self._publisher: Publisher | NullPublisher
        if isinstance(store, NullStore):
            self._publisher = store.publisher()
        else:
            self._publisher = Publisher(store, link.subject)
        self._open_ticks: list[int] = []
        self._sealed_ticks: list[int] = []
        self._unsynced_since_s: float | None = None
        self.done = self._publisher.done
        self.times = self._publisher.times
        self.written_rows = 0
        self.written_bytes = 0
        self.written_jobs = 0
        self.rejected_rows = 0
        self.ended = False
        self._door = link.jobs.add_door()
        number = f"-{self._door.number + 1}" if self._door.number else ""
        self.thread = threading.Thread(target=self._run, name=f"interlock-drain{number} {store.text}", daemon=True)

    def tell(self, order: Order) -> None:
        """Leave an order. Never blocks; from any thread, also from a finaliser."""
        self._door.orders.post(order)

    def _run(self) -> None:
        self.times.begin("check")
        count_here(self.times)
        try:
            while not self._link.stop.is_set():
                job = self._next()
                if job is not None:
                    self._do(job)
                    self._door.has_open = self._publisher.open_bytes > 0
        except BaseException as error:  # noqa: BLE001 - whatever it is, the owner must hear of it
            self._failed(self._explain(error))
        finally:
            self._end()

    def _next(self) -> Job | Order | None:
        """Return what to do next; commit instead, and return None, when there is none or rows are old enough."""
        order = self._door.orders.take_nowait()
        if order is not None:
            return order
        since_s = self._publisher.begun_s if self._publisher.begun_s is not None else self._unsynced_since_s
        left_s = _IDLE_S if since_s is None else since_s + self._settings.commit_interval_s - time.monotonic()
        if left_s > 0:
            job = self._link.jobs.take(self._door)
            if job is not None:
                return job
            if not self._publisher.is_sealed:
                self._door.doing = "waiting for rows"
                with self.times.on("idle"):
                    order = self._door.orders.wait_take(left_s)
            self._door.idle = False
            if order is not None or since_s is None:
                return order
        if self._publisher.is_sealed and left_s > 0:
            self._finish_shard()
        else:
            self._commit()
            self._door.has_open = False
        return None

    def _do(self, job: Job | Order) -> None:
        if isinstance(job, RowsJob):
            self._write(job)
            self._open_ticks.append(job.tick)
        elif isinstance(job, FailJob):
            self._reject(job.ids, job.reason)
            self._open_ticks.append(job.tick)
            self._link.jobs.written.end([job.tick])
        elif isinstance(job, FlushJob):
            self._commit()
        if not self._publisher.open_bytes and self._unsynced_since_s is None:  # all is in shards that are full
            self._sealed_ticks += self._open_ticks
            self._open_ticks = []
            if not self._publisher.is_sealed:
                self._tell_committed()

    def _write(self, job: RowsJob) -> None:
        rows = _describe(job.ids)
        columns = landed = self._land(job, rows)
        check(job, landed, "when it had landed")
        ids = job.ids
        if self._settings.nan == "fail":
            ids, columns = self._without_nan(ids, columns)
        self._door.doing = f"writing {rows}"
        self._publisher.number = job.number
        with span("write", self._link.subject, job.number, sum(column.nbytes for column in columns.values())):
            self._write_in_shards(ids, columns)
        check(job, landed, "when it was written")
        del columns, landed
        job.readers.clear()
        self.written_rows += len(ids)
        self.written_bytes += job.size_bytes
        self.written_jobs += 1
        self._link.jobs.written.end([job.tick])
        self._link.owner.post(Written(job))

    def _land(self, job: RowsJob, rows: str) -> Mapping[str, Rows]:
        self._door.doing = f"waiting for the copy of {rows} to land"
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
            stop = max(start + 1, bisect_right(ends, ends[start] + room_bytes) - 1)
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
                    self.rejected_rows += int(bad.sum())
                    self._link.owner.post(Rejected(ids[bad]))
                    good &= ~bad
        if good.all():
            return ids, columns
        return ids[good], {name: chosen(column, good) for name, column in columns.items()}

    def _reject(self, ids: IdArray, reason: str) -> None:
        with self.times.on("commit"), self._store.committing:
            late = self._store.committed.contains_many(ids)  # they came again since, and another lane was faster
            if not late.all():
                self._store.failures.record(ids[~late], reason)
        if self._unsynced_since_s is None:
            self._unsynced_since_s = time.monotonic()

    def _commit(self) -> None:
        """Commit everything that this lane wrote."""
        self._seal_shard()
        self._finish_shard()

    def _seal_shard(self) -> None:
        """Close the open shard, which is brought to the storage from now on; commit the one before."""
        self._finish_shard()
        with self.times.on("commit"), self._store.committing:
            self._store.failures.sync()
        self._unsynced_since_s = None
        self._publisher.seal()
        self._sealed_ticks, self._open_ticks = self._open_ticks, []  # of the jobs before the one that filled the shard
        if not self._publisher.is_sealed:
            self._tell_committed()

    def _finish_shard(self) -> None:
        self._door.doing = f"committing a shard of {self._store.text}"
        if self._publisher.is_sealed:
            self._publisher.finish()
            self._tell_committed()

    def _tell_committed(self) -> None:
        ticks, self._sealed_ticks = self._sealed_ticks, []
        self._link.jobs.committed.end(ticks)

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
        """Let go of everything but a shard that is full."""
        try:
            self._finish_shard()
        except Exception as error:  # noqa: BLE001 - told, unless what happened before says more
            self._failed(self._explain(error))
        with suppress(Exception):  # the storage failed already: what is left is a temporary, which the next run removes
            self._publisher.abandon()
        self.times.end()
        self._ended(self)


def _describe(ids: IdArray) -> str:
    first, last = ids[0], ids[-1]
    return f"row {first!s}" if len(ids) == 1 else f"{len(ids)} rows ({first!s} to {last!s})"
