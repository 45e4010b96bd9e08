"""What a drain did, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, final

from interlock.drain._times import WRITER_PHASES

if TYPE_CHECKING:
    from interlock.drain._intake import Intake
    from interlock.drain._null import NullStore
    from interlock.drain._store import Store
    from interlock.drain._writer import Writer

_OF_NOW = frozenset({"rows_resumed", "rows_failed", "held_bytes", "budget_bytes", "writers"})
"""Not counts of what was done so far."""


@final
@dataclass(frozen=True, slots=True)
class DrainStatistics:
    """What a drain has done so far in this run.

    Times are of two kinds. Each moment from the first `put` until the drain is closed (`elapsed_s`) is in one of
    `loop_s`, `put_s`, `wait_slot_s`, `copy_s` and `flush_s`: what the producer did. And each moment in the life of a
    thread that writes is in one of `idle_s`, `land_s`, `check_s`, `encode_s`, `write_s`, `hash_s`, `fsync_s` and
    `commit_s`, which are summed over these threads: so together they are as long as each of them has lived.

    Attributes:
        puts: Calls of `put` that gave rows.
        flushes: How often everything that was put was committed on demand: calls of `flush` and `close`, and puts of
            rows that came before and are not committed yet.
        rows_put: Rows given to `put`.
        rows_written: Rows that are with the sink.
        rows_committed: Rows that this run committed.
        rows_resumed: Rows that were committed when the drain was opened.
        rows_failed: Rows that failed in this run and were not committed since.
        rows_duplicate: Rows dropped since the same bytes had come before.
        bytes_put: Bytes of these rows, without those that were dropped.
        bytes_written: Bytes of the files of committed shards.
        shards: Shards that this run committed.
        start_s: Seconds between the opening of the drain and the first `put`.
        idle_start_s: The part of `idle_s` that lies before the first `put`.
        elapsed_s: Seconds since the first `put`, until the drain is closed.
        loop_s: Seconds of the producer outside of the drain: what it does itself.
        put_s: Seconds in `put` besides the next two: taking snapshots, looking for ids that came before.
        wait_slot_s: Seconds that `put` waited for a slot: the writers or the storage are slower than the producer.
        wait_writer_s: Those of them in which rows that had landed waited for a writer: one more would have begun them.
        copy_s: Seconds that `put` spent copying host arrays.
        flush_s: Seconds in `flush` and `close`, until what was put was committed.
        idle_s: Seconds that the writer had nothing to do: the producer is slower than the writer.
        land_s: Seconds that the writer waited for values to land: it is as fast as the device or the link.
        check_s: Seconds of looking for NaN, of comparing (`verify`) and of the writer's own bookkeeping.
        encode_s: Seconds spent in the sink's format, or in the function that is the sink.
        write_s: Seconds in the system's calls that write.
        hash_s: Seconds that the writer waited for hashes, beyond the syncing, beside which they are computed.
        fsync_s: Seconds that the writer waited for files to be on the storage. What was synced and hashed while it
            wrote the next shard does not count.
        commit_s: Seconds of making shards visible and recording them, with the syncing that belongs to that.
        process_s: Processor time of this process in `elapsed_s`, all of its threads.
        writers: Threads that may write now; with `auto` more may come.
        held_bytes: Bytes of the budget in use now.
        budget_bytes: The budget.
        host_syncs: How often a put made the host wait for a device.
    """

    puts: int = 0
    flushes: int = 0
    rows_put: int = 0
    rows_written: int = 0
    rows_committed: int = 0
    rows_resumed: int = 0
    rows_failed: int = 0
    rows_duplicate: int = 0
    bytes_put: int = 0
    bytes_written: int = 0
    shards: int = 0
    start_s: float = 0.0
    idle_start_s: float = 0.0
    elapsed_s: float = 0.0
    loop_s: float = 0.0
    put_s: float = 0.0
    wait_slot_s: float = 0.0
    wait_writer_s: float = 0.0
    copy_s: float = 0.0
    flush_s: float = 0.0
    idle_s: float = 0.0
    land_s: float = 0.0
    check_s: float = 0.0
    encode_s: float = 0.0
    write_s: float = 0.0
    hash_s: float = 0.0
    fsync_s: float = 0.0
    commit_s: float = 0.0
    process_s: float = 0.0
    writers: int = 1
    held_bytes: int = 0
    budget_bytes: int = 0
    host_syncs: int = 0

    @property
    def writers_s(self) -> float:
        """Seconds that the threads that write have lived, summed."""
        return sum(self.of_writers.values())

    @property
    def of_writers(self) -> dict[str, float]:
        """Seconds of the threads that write, by what they did: `idle`, `land` and so on."""
        return {phase: getattr(self, f"{phase}_s") for phase in WRITER_PHASES}

    @property
    def of_producer(self) -> dict[str, float]:
        """Seconds since the first put, by what the producer did: `loop` is its own, the rest was spent in the drain."""
        return {
            "loop": self.loop_s,
            "put": self.put_s,
            "slot": self.wait_slot_s,
            "copy": self.copy_s,
            "flush": self.flush_s,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    def since(self, earlier: DrainStatistics) -> DrainStatistics:
        """Return what was done after `earlier`; rows from before or failed, writers and the budget are those of now."""
        done = {
            name: getattr(self, name) - getattr(earlier, name)
            for name in self.__dataclass_fields__
            if name not in _OF_NOW
        }
        return replace(self, **done)


def gather(intake: Intake, writer: Writer, store: Store | NullStore, **counts: Any) -> DrainStatistics:
    """Return counts together with what the parts of a drain know.

    Args:
        intake: What takes rows.
        writer: What writes them.
        store: Where they go.
        counts: The other fields.
    """
    loop = intake.times.seconds()
    start_s = loop.pop("start")
    lanes = [lane.times.seconds() for lane in writer.lanes]
    times: dict[str, Any] = {f"{phase}_s": sum(lane[phase] for lane in lanes) for phase in WRITER_PHASES}
    done = writer.done
    return DrainStatistics(
        **counts,
        **times,
        rows_written=writer.written_rows,
        rows_committed=done.rows,
        rows_resumed=store.resumed_rows,
        rows_failed=store.failures.count,
        bytes_put=intake.size_bytes,
        bytes_written=done.size_bytes,
        shards=done.shards,
        start_s=start_s,
        idle_start_s=min(writer.first * start_s, times["idle_s"]),
        elapsed_s=sum(loop.values()),
        loop_s=loop["loop"],
        put_s=loop["put"],
        wait_slot_s=loop["slot"],
        wait_writer_s=intake.wait_writer_s,
        copy_s=loop["copy"],
        flush_s=loop["flush"],
        held_bytes=intake.held_bytes,
        budget_bytes=intake.budget_bytes,
        host_syncs=intake.host_syncs,
    )
