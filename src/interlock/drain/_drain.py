"""The drain: what programs put rows into."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, final, overload

import numpy as np

from interlock._core._fence import Fence
from interlock._reporting import Report
from interlock._waiting import wait
from interlock.drain._call import name_of, without_folder
from interlock.drain._duplicates import StoredRows, leaves_at, on_host
from interlock.drain._explain import explain, setting_of
from interlock.drain._failures import or_given_up, still_failed
from interlock.drain._ids import as_ids, first_of_each, kind_of
from interlock.drain._idsets import IdSet, IdView
from interlock.drain._intake import Intake
from interlock.drain._jobs import FailJob, FlushJob
from interlock.drain._lane import WriterSettings
from interlock.drain._link import Link
from interlock.drain._maintain import settle_sink
from interlock.drain._metrics import prometheus_text
from interlock.drain._options import check_ages, check_choice, check_numbers, check_restart
from interlock.drain._outputs import leaves_of, leaves_of_rows
from interlock.drain._ragged import chosen
from interlock.drain._reductions import check_reductions, reduced
from interlock.drain._report import begin_report
from interlock.drain._resume import pending_source
from interlock.drain._run import plain_fingerprint
from interlock.drain._schema import Limits
from interlock.drain._statistics import gather
from interlock.drain._store import Store
from interlock.drain._tickets import Ticket
from interlock.drain._times import Stopwatch
from interlock.drain._todo import check_rank, todo
from interlock.drain._turns import refuse_inside, refuse_other_process
from interlock.drain._writer import Writer, forget, leave
from interlock.errors import BoundError, DeviceError, InterlockError, LeaseError, UsageError
from interlock.frameworks import process_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from interlock._core._protocols import Source
    from interlock._reporting import To
    from interlock.drain._call import SinkFunction
    from interlock.drain._explain import Explanation
    from interlock.drain._failures import Failure
    from interlock.drain._ids import IdArray
    from interlock.drain._jobs import Landing
    from interlock.drain._outputs import AnyLeaf
    from interlock.drain._reductions import Reduction
    from interlock.drain._report import Record
    from interlock.drain._resume import PendingSource
    from interlock.drain._statistics import DrainStatistics
    from interlock.drain._todo import Todo

_STOP_BOUND_S = 10.0


@final
class Drain:
    """Takes the outputs of a model to a committed dataset, while the program goes on.

    Use it in a `with` block: leaving it commits everything that was put, also when an exception is the reason.

    Args:
        sink: `parquet:PATH`, `arrow:PATH`, `npy:PATH`, `safetensors:PATH`, `zarr:PATH`, `webdataset:PATH` or
            `delta:PATH`; the folder is made if it is not there. Or `null:`, for measuring: rows come to the host, are
            counted and are forgotten. Then *committed* means counted: nothing is on any storage. Or a function of ids
            and a dict of output name to rows, called on the writer thread; the arrays hold the rows until it returns,
            and no longer. Then *committed* means that it returned: what it did in earlier runs is not known, so a row
            that is put again after a crash is given to it again.
        outputs: What becomes of an output, by its dotted name, before it leaves its device: `Cast("float16")`,
            `TopK(5)`, `Argmax()`, `Quantize()` or `Crop(slice(10, -10))`, all in `interlock.drain`; or a list, done in
            its order. Computed in `put`, by the framework that holds the array.
        fingerprint: The conditions under which the rows are made, as plain JSON values. A sink that was written under
            others is refused; None skips the comparison. `outputs` are compared in any case.
        total: Rows that there will be, so that a status can tell what is missing.
        restart: Discard what is in the sink, if it is ours. Not with several ranks: none knows that it is the first.
        rank: (rank, world): which of how many processes this is, all of which write into one folder. `auto`: as
            `torch.distributed` or `jax.distributed` say, if one is initialised now; else the only one. Ranks need not
            know of each other: each has its own shards, lock and manifest, and waits for others only while one opens
            or closes.
        borrow: The caller promises not to change or donate an array before its ticket is `written` (device memory:
            before it has `landed`): no snapshot is taken.
        budget_bytes: Most bytes of rows between `put` and the sink, on the host; snapshots on devices take at most as
            much there, and a put that is larger its whole size besides. `put` blocks while they are in use. A row that
            is larger travels alone, through slots of half the budget into host memory of its own: so then the host
            holds that row and the budget.
        writers: Threads that encode and write, each a shard of its own: shards interleave, the rows of a put stay
            together unless it is large. A second one begins a shard when rows for a whole one wait. `auto`: one, a
            second when it does not keep up, and others up to four or the processors, as long as each brings a tenth
            and what the format holds besides while it encodes (`parquet:` six times a large put) fits the budget. A
            function as sink and `null:` have one, and get rows in the order of the puts.
        shard_bytes: Size at which a shard is committed.
        commit_interval_s: Age at which it is.
        nan: `fail` records rows with a NaN as failed in place of writing them.
        repeats: What to do with a row whose id came before: `same` drops it if it has the same bytes, and else is an
            error. `first` keeps the first and looks at no bytes: for samplers that pad, where the row that comes again
            was computed in another batch and so may differ in its last bits. A function and `null:` keep no rows to
            compare with, so they always get the first alone.
        timeout_s: Bound on every wait, in seconds.
        fsync: `commit`: rows are committed when they are on the storage. `never`: when the system has them, so that
            they survive the process, and perhaps not the machine: after a power cut the next run reads those shards,
            sets aside what did not survive, and has its rows pending again.
        verify: Compare what the writer gets, before and after it writes, with what was put, and overwrite slots that
            come back with 0xFF. What differs fails the drain with a `CorruptionError`, and is not committed unless its
            shard was full. This is for finding faults: each put copies its arrays once more and waits for them.

    Raises:
        UsageError: An argument is out of range, or there is no such sink.
        SinkConflictError: The folder holds something else, was written under other conditions or is being written.
        SinkError: The storage refused.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Drain(f"npy:{folder}/out") as drain:
        ...         ticket = drain.put([7, 8], {"y": np.ones((2, 3))})
        ...     ticket.committed, len(drain.committed), 7 in drain.committed
        (True, 2, True)
    """

    def __init__(
        self,
        sink: str | SinkFunction,
        *,
        outputs: Mapping[str, Reduction | Sequence[Reduction]] | None = None,
        fingerprint: Mapping[str, object] | None = None,
        total: int | None = None,
        restart: bool = False,
        rank: Literal["auto"] | tuple[int, int] = "auto",
        borrow: bool = False,
        budget_bytes: int = 1 << 30,
        writers: int | Literal["auto"] = "auto",
        shard_bytes: int = 64 << 20,
        commit_interval_s: float = 30.0,
        nan: Literal["keep", "fail"] = "keep",
        repeats: Literal["same", "first"] = "same",
        timeout_s: float = 600.0,
        fsync: Literal["commit", "never"] = "commit",
        verify: bool = False,
    ) -> None:
        check_numbers(writers, total, budget_bytes=budget_bytes, shard_bytes=shard_bytes, timeout_s=timeout_s)
        check_ages(commit_interval_s=commit_interval_s)
        check_choice("nan", nan, "keep", "fail")
        check_choice("repeats", repeats, "same", "first")
        check_choice("fsync", fsync, "commit", "never")
        self.rank, self.world = process_rank() if rank == "auto" else rank
        check_rank(self.rank, self.world)
        check_restart(self.rank, self.world, restart=restart)
        self.sink = sink if isinstance(sink, str) else name_of(sink)
        conditions = plain_fingerprint(fingerprint)
        self._reductions = check_reductions(outputs)
        self._store = without_folder(sink, fingerprint=conditions, total=total) or Store(
            self.sink,
            fingerprint=conditions,
            total=total,
            outputs={name: [repr(one) for one in chain] for name, chain in self._reductions.items()},
            restart=restart,
            rank=self.rank,
            timeout_s=timeout_s,
            syncs=fsync == "commit",
        )
        self._limits = Limits.of(self._store.sink) if isinstance(self._store, Store) else Limits()
        self._seen = IdSet()
        self._link = Link()
        self._lock = threading.RLock()
        self._pid, self._repeats, self._timeout_s = os.getpid(), repeats, timeout_s
        self._closed = self._is_inside = False
        self._puts = self._flushes = self._rows_put = self._rows_duplicate = 0
        self._stored = StoredRows(self._store) if isinstance(self._store, Store) else None
        self._ids_kind = self._store.run.ids
        settings = WriterSettings(writers, budget_bytes, shard_bytes, commit_interval_s, nan, timeout_s)
        self._writer = Writer(self._store, self._link, settings)
        self._intake = Intake(
            self._link,
            self._seen,
            self.sink,
            self._store.run.schema,
            budget_bytes=budget_bytes,
            borrow=borrow,
            timeout_s=timeout_s,
            verify=verify,
            limits=self._limits,
        )
        self._times = self._intake.times
        self._times.begin("start")
        self._setting = setting_of(self._store, shard_bytes)
        self._processors = Stopwatch(("used",), time.process_time)
        self._writer.start()
        self._forgotten = weakref.finalize(self, forget, self._writer)
        self._forgotten.atexit = False  # the hook of the writers does that, and waits for them

    def __repr__(self) -> str:
        return f"Drain({self.sink!r}, {len(self.committed)} rows committed)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except InterlockError as second:
            if second is not error:
                error.add_note(f"and the drain could not commit what was put: {second}")

    @property
    def committed(self) -> IdView:
        """Ids of the rows that no crash can lose any more, of earlier runs too. Never blocks."""
        return IdView(self._store.committed)

    @property
    def failures(self) -> dict[int | str, Failure]:
        """Rows that failed and were not committed since, in earlier runs too, by id, as far as the writer has got."""
        return still_failed(self._store.failures.known(), self._store.committed)

    def put(self, ids: Any, outputs: Any) -> Ticket:
        """Take rows, with the values that they have now in the order of their producer.

        Args:
            ids: One int or str per row, as a sequence or array; one kind in all of a sink. An id that came before is
                dropped if its row has the same bytes; see `repeats`.
            outputs: An array, or nested dicts and tuples of arrays (NumPy, PyTorch, JAX, CuPy, `DeviceArray`) whose
                first axis is rows; or `Ragged` for rows that differ in length. Names, dtypes and row shapes are the
                same in every put.

        Returns:
            A ticket that tells how far the rows are.

        Ordering:
            After this returns the caller may change, donate or overwrite the arrays, in its own order: host arrays at
            once, JAX arrays as JAX orders it, PyTorch tensors and CuPy arrays on the stream that is current now on
            their device, a `DeviceArray` on the streams that its `ready` names. Not with `borrow`. A tensor that
            another stream makes is put inside `with torch.cuda.stream(...)`.

        Copies: once to the host; device arrays also once on the device, unless `borrow`.

        Blocks: while the budget is in use; for rows that came before; for a row larger than the budget; for a
            `DeviceArray` that no stream orders; and for `offsets` on a device, if the put is more than a share of the
            budget, of which there is one for each writer and one more. The first puts also make the slots.

        Raises:
            UsageError: Ids or outputs do not fit; the message names the leaf or the id. Nothing of the put is written,
                except for rows before an id that came twice with other bytes.
            SinkError: Writing failed, now or before.
            DeviceError: A device has no memory for the snapshot or for a slot. Nothing of the put is written, if it
                fits the budget; the drain goes on.
            BoundError: The wait for room was longer than `timeout_s`.
        """
        with self._owned():
            row_ids = as_ids(ids)
            leaves = leaves_of(outputs, len(row_ids))
            if not row_ids.size:
                return Ticket(self._link, (), 0)
            self._check_kind(row_ids)
            leaves = reduced(leaves, self._reductions) if self._reductions else leaves
            if self._limits.check is not None:
                self._limits.check(row_ids, [leaf.name for leaf in leaves])
            self._intake.collect()
            landings = self._put_rows(row_ids, None, leaves)
            self._puts += 1
            self._rows_put += len(row_ids)
            self._ids_kind = kind_of(row_ids)
            return Ticket(self._link, tuple(landings), self._intake.last_tick)

    def fail(self, ids: Any, reason: str) -> None:
        """Record rows that could not be produced. They stay pending; those that were put already are left out.

        Args:
            ids: As in `put`.
            reason: Why, in a line.

        Raises:
            UsageError: They are no ids of this sink.
            SinkError: Writing failed before.
        """
        with self._owned():
            row_ids = as_ids(ids)
            if not row_ids.size:
                return
            self._check_kind(row_ids)
            self._intake.collect()
            known = self._seen.contains_many(row_ids) | self._store.committed.contains_many(row_ids)
            row_ids = row_ids[first_of_each(row_ids) & ~known]
            if row_ids.size:
                self._ids_kind = kind_of(row_ids)
                self._link.jobs.post(FailJob(self._link.next_tick(), row_ids, reason))

    def todo(self, ids: Any, *, rank: int | None = None, world: int | None = None) -> Todo:
        """Return which of `ids` this rank has to do: every `world`-th of them from `rank` on that is not committed.

        Whose an id is depends on its place in `ids` only, not on what is committed: so ranks that start at different
        times, or with other ranks than the run before, leave none out and do none twice.

        Args:
            ids: All ids of the job, the same on all ranks: a range, or a sequence or array. A range of a hundred
                million takes some 40 MB; numbers are kept as an array, strings as a list of them.
            rank: Default: that of the drain.
            world: Default: that of the drain.

        Raises:
            UsageError: They are no ids, or there is no such rank.
        """
        rank, world = self.rank if rank is None else rank, self.world if world is None else world
        return todo(ids, self._store.committed, rank, world)

    @overload
    def pending(self, source: Source, *, max_attempts: int | None = None) -> PendingSource: ...

    @overload
    def pending(
        self, source: Iterable[tuple[Any, Any]], *, max_attempts: int | None = None
    ) -> Iterator[tuple[Any, Any]]: ...

    def pending(self, source: Any, *, max_attempts: int | None = None) -> PendingSource | Iterator[tuple[Any, Any]]:
        """Return what of `source` is not committed, in its order. Rows that failed before are pending again.

        Args:
            source: A map-style source (`__len__` and `__getitem__`), whose ids are `source.id_of(index)` if it has
                that, else row numbers; of it each of several ranks gets its share, as with `todo`. Or any other
                iterable of (id, sample), which is this rank's own.
            max_attempts: Leave out rows that failed so often, over all runs.

        Returns:
            A source with `__len__`, `__getitem__`, `id_of` (and `read_into` if `source` has it); or such pairs.

        Raises:
            UsageError: `source` is no source, or `max_attempts` is not positive.
        """
        done = or_given_up(self._store.committed, self._store.failures.known(), max_attempts)
        return pending_source(source, done, self.rank, self.world)

    def flush(self) -> None:
        """Commit everything that was put so far.

        Blocks: until it is on the storage.

        Raises:
            SinkError: Writing failed, now or before.
            BoundError: It took longer than `timeout_s`.
        """
        with self._owned():
            self._flush()

    def close(self) -> None:
        """Commit everything that was put and let go of the folder.

        Calling it again does nothing, nor does calling it in a forked child: that is its parent's business. Rows that
        other ranks have too are removed, so that each is there once when the last rank has closed.

        Blocks: until everything is on the storage.

        Raises:
            SinkError: Writing failed, now or before; what was committed stays. Raised by every call.
            SinkConflictError: Two ranks wrote the same id with other bytes. Both rows stay where they are.
            BoundError: It took longer than `timeout_s`; what is not committed is given up. Raised by every call. The
                folder stays locked while the writer hangs, since it may yet write.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                self._link.raise_failure()
                return
            refuse_inside(self.sink, is_inside=self._is_inside)
            self._closed = True
            self._forgotten.detach()
            try:
                with self._times.on("flush"):
                    self._close()
            finally:
                self._times.end()
                self._processors.end()

    def _close(self) -> None:
        try:
            self._link.raise_failure()
            self._flush()
        except BoundError as error:
            self._link.failure = self._link.failure or error  # every later call says so too
            raise
        finally:
            ended = self._writer.stop(_STOP_BOUND_S) or leave(self._writer)
        if not ended:
            raise BoundError(f"the writer of {self.sink} does not end", why=self._link.doing)
        if isinstance(self._store, Store) and self._store.has_peers:
            settle_sink(self.sink, repeats=self._repeats, wait_s=self._timeout_s)

    def statistics(self) -> DrainStatistics:
        """Return counts and times up to now. Never blocks."""
        return gather(
            self._intake,
            self._writer,
            self._store,
            puts=self._puts,
            flushes=self._flushes,
            rows_put=self._rows_put,
            rows_duplicate=self._rows_duplicate,
            process_s=self._processors.seconds()["used"],
            writers=self._link.jobs.limit,
        )

    def explain(self, since: DrainStatistics | None = None) -> Explanation:
        """Return what limits the drain, and what would change that; `str` of it is a few sentences. Never blocks.

        Args:
            since: Statistics from before; then what was done until then does not count. Default: all that was done.

        Example:
            >>> with Drain("null:") as drain:
            ...     print(drain.explain())
            0 rows were put so far: too few to tell what limits the drain.
        """
        statistics = self.statistics()
        return explain(statistics if since is None else statistics.since(since), self._setting)

    def report(self, to: To[Record], every_s: float = 10.0) -> Report[Drain, Record]:
        """Tell what the drain does while a `with` block runs, every so often and at its end, as `Feed.report` does.

        Args:
            to: A file that gets an object of JSON per line, appended; or a function that is called with each `Record`.
            every_s: Seconds between records.

        Raises:
            UsageError: `to` is neither, or a file in no folder; `every_s` is not positive.
        """
        return Report(self, begin_report, to, every_s, "the drain")

    def metrics(self) -> str:
        """Return the statistics in the text format of Prometheus. Nothing of the data is in it, and no path."""
        return prometheus_text(self.statistics(), self._setting.scheme, self.rank)

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Hold the lock of those who may touch the rings, on a drain that works."""
        refuse_other_process(self.sink, self._pid)
        with self._lock:
            refuse_inside(self.sink, is_inside=self._is_inside)
            self._link.raise_failure()
            if self._closed:
                raise LeaseError(f"the drain of {self.sink} is closed", hint="put rows inside its with block")
            if self._times.switch("loop") == "start":
                self._processors.begin("used")
            self._is_inside = True
            try:
                with self._times.on("put"):
                    yield
            finally:
                self._is_inside = False

    def _check_kind(self, ids: IdArray) -> None:
        kind = kind_of(ids)
        if self._ids_kind is not None and kind != self._ids_kind:
            raise UsageError(
                f"id {ids[:1].tolist()[0]!r} is a {kind}",
                why=f"the ids of {self.sink} so far are {self._ids_kind}",
                hint="use one kind for all rows of a sink",
            )

    def _put_rows(self, ids: IdArray, rows: IdArray | None, leaves: list[AnyLeaf]) -> list[Landing]:
        """Put rows; `rows` are their numbers in the user's put, for messages; None where those are all of it."""
        known = self._seen.contains_many(ids) | self._store.committed.contains_many(ids) | ~first_of_each(ids)
        if not known.any():
            return self._intake.take(ids, leaves)
        if self._repeats == "first":
            left = np.flatnonzero(~known)
            self._rows_duplicate += len(ids) - len(left)
            return self._intake.take(ids[left], leaves_at(leaves, left, self._intake.fetch)) if left.size else []
        self._intake.check(leaves)
        rows = np.arange(len(ids)) if rows is None else rows
        fresh = ~known
        held = {leaf.name: on_host(leaf, self._intake.fetch) for leaf in leaves}
        landings = self._intake.take(ids[fresh], leaves_of_rows(held, fresh)) if fresh.any() else []
        if not self._store.committed.contains_many(ids[known]).all():
            self._flush()
            self._intake.collect()
        stored = known & self._store.committed.contains_many(ids)
        same = np.flatnonzero(stored)
        if self._stored is not None:
            columns = {name: chosen(column, same) for name, column in held.items()}
            self._stored.refuse_other_bytes(ids[same], rows[same], columns)
        self._rows_duplicate += len(same)
        again = known & ~stored  # failed, or lost to an interrupt: a flush leaves nothing on its way
        self._seen.discard_many(ids[again])
        return landings + (self._put_rows(ids[again], rows[again], leaves_of_rows(held, again)) if again.any() else [])

    def _flush(self) -> None:
        self._flushes += 1
        tick = self._link.next_tick()
        self._link.jobs.post(FlushJob(tick))
        try:
            with self._times.on("flush"):
                self._intake.hear_while_behind()
                wait(Fence([(self._link.committed, tick)]), timeout_s=self._timeout_s, what="the flush")
        except DeviceError:
            self._link.raise_failure()
            raise
        except BoundError as error:
            self._link.raise_failure()
            raise BoundError(
                f"the flush of {self.sink} is not done after {self._timeout_s:g} s",
                why=self._link.doing,
                hint="raise timeout_s, or look at the storage",
            ) from error
        self._intake.collect()
