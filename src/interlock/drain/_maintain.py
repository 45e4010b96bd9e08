"""What is done to a finished dataset offline: merge its ranks, make big shards of small ones, say what is left."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._failures import all_failures
from interlock.drain._files import seal
from interlock.drain._idcodes import encode_ids
from interlock.drain._inspect import read_committed, read_status
from interlock.drain._manifest import Manifests, gone_line
from interlock.drain._rewrite import opened_workshop, run_step
from interlock.drain._run import forget_schemas
from interlock.drain._settle import settle
from interlock.drain._store import Store
from interlock.drain._todo import Todo, todo
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock.drain._holdings import HeldShard
    from interlock.drain._rewrite import Workshop
    from interlock.drain._settle import Repeats
    from interlock.drain._storage import Storage

MERGE_STEPS = ("manifest", "failures", "run", "forget")


@final
@dataclass(frozen=True, slots=True)
class MergeReport:
    """What `merge_sink` or `compact_sink` did.

    Attributes:
        sink: As given.
        rows: Rows in the dataset now.
        shards: Its shards now.
        ranks: How many ranks had a manifest.
        rows_removed: Rows that were in a shard before, and are there once now.
        shards_replaced: Shards that went into others.
    """

    sink: str
    rows: int
    shards: int
    ranks: int
    rows_removed: int
    shards_replaced: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank has to do.

    Attributes:
        rank: Which.
        todo: The ids.
    """

    rank: int
    todo: Todo

    def as_dict(self, *, ids: bool = False) -> dict[str, Any]:
        """Return plain values for JSON.

        Args:
            ids: Also the ids, as a code that `interlock.drain.decode_ids` reads; None where nothing is left.
        """
        rows = len(self.todo)
        ends = {"first": self.todo[0], "last": self.todo[-1]} if rows else {"first": None, "last": None}
        code = {"ids": encode_ids(np.asarray(self.todo)) if rows else None} if ids else {}
        return {"rank": self.rank, "rows": rows, **ends, **code}


def settle_sink(sink: str, *, repeats: Repeats = "same", wait_s: float = 60.0) -> int:
    """Remove rows that several ranks wrote, where no rank writes any more; return how many.

    Raises:
        SinkConflictError: Two rows of one id differ, and `repeats` is `same`; or the sink is damaged.
        SinkError: The storage refused.
    """
    with opened_workshop(sink, alone=False, wait_s=wait_s) as work:
        return settle(work, repeats)


def merge_sink(sink: str, *, repeats: Repeats = "same") -> MergeReport:
    """Make one dataset of what the ranks wrote: one manifest, one log of failures, each row once. Shards stay.

    Args:
        sink: As in `Drain`.
        repeats: `same`: rows of one id must have the same bytes. `first`: that of the lowest rank counts.

    Raises:
        SinkConflictError: Two rows of one id differ, and `repeats` is `same`; the sink is damaged or being written.
        SinkError: The storage refused.
    """
    with opened_workshop(sink, alone=True) as work:
        return _merge(work, repeats)


def compact_sink(sink: str, *, shard_bytes: int = 256 << 20, repeats: Repeats = "same") -> MergeReport:
    """Merge, and make shards of up to `shard_bytes` of smaller ones, neighbours by id where ids are integers.

    Blocks: while it reads and writes them. Do not read the folder by its file names meanwhile.

    Raises:
        UsageError: `shard_bytes` is not positive.
        SinkConflictError: As in `merge_sink`.
        SinkError: The storage refused.
    """
    if shard_bytes <= 0:
        raise UsageError(f"shard_bytes is {shard_bytes}", why="it must be positive")
    with opened_workshop(sink, alone=True) as work:
        report = _merge(work, repeats)
        replaced = made = 0
        for group in _groups(work.holdings.shards, shard_bytes):
            work.rewrite(0, [(shard, np.arange(shard.rows)) for shard in group])
            replaced, made = replaced + len(group), made + 1
        return replace(report, shards=report.shards - replaced + made, shards_replaced=replaced)


def discard_sink(sink: str) -> None:
    """Remove all rows of a sink, as `Drain(..., restart=True)` does; for jobs of several ranks, before they start.

    Raises:
        SinkConflictError: It holds something else, or is being written.
        SinkError: The storage refused.
    """
    Store(sink, fingerprint=None, total=None, restart=True).close()


def resume_plan(sink: str, world: int, total: int | None = None) -> list[RankPlan]:
    """Tell what each of `world` ranks would do of rows 0 to `total`, as `Drain.todo` does.

    Args:
        sink: As in `Drain`.
        world: Number of ranks.
        total: Default: what the drain was told.

    Raises:
        UsageError: The ids are strings, or there is no total; or there is no such sink.
        SinkError: It cannot be read.
    """
    if world < 1:
        raise UsageError(f"there are no {world} ranks", hint="use --world 1 or more")
    status = read_status(sink)
    rows = status.rows_total if total is None else total
    if rows is None:
        raise UsageError(f"{sink} does not say how many rows there will be", hint="give --total")
    if status.ids == "str":
        why = "which strings are missing, only the source knows"
        raise UsageError(f"the ids of {sink} are strings", why=why, hint="use drain.pending(source) or drain.todo(ids)")
    committed = read_committed(sink)
    return [RankPlan(rank, todo(range(rows), committed.ids, rank, world)) for rank in range(world)]


def _merge(work: Workshop, repeats: Repeats) -> MergeReport:
    storage = work.storage
    removed = settle(work, repeats)
    storage.refresh()
    ranks = [rank for rank in storage.ranks() if storage.has(storage.layout.of(rank).manifest)]
    others = [storage.of(rank) for rank in storage.ranks() if rank]
    run_step("manifest", lambda: _write_manifest(storage))
    run_step("failures", lambda: _write_failures(storage))
    run_step("run", lambda: work.run.save(storage))
    run_step("forget", lambda: _forget(storage, others))
    homes = [replace(shard, home=0) for shard in work.holdings.shards]
    work.holdings.shards[:] = homes
    rows = sum(shard.rows for shard in homes)
    return MergeReport(work.text, rows, len(homes), len(ranks), removed, 0)


def _write_manifest(storage: Storage) -> None:
    """Write one manifest of all; until the others are removed, both say the same.

    Shards that count no more are named only while they are there, as where a catalogue keeps them for its readers.
    """
    manifests = Manifests(storage)
    gone = sorted(manifests.gone.intersection(storage.visible()))
    lines = (replace(record, replaces=()).line() for _, record in manifests.records())
    storage.replace_log(storage.layout.manifest, chain([gone_line(gone)] if gone else [], lines))


def _write_failures(storage: Storage) -> None:
    lines = (seal(failure.as_dict()) for failure in all_failures(storage).values())
    storage.replace_log(storage.layout.failures, lines)


def _forget(storage: Storage, others: list[Storage]) -> None:
    """Remove the files of ranks but 0; what is in quarantine stays."""
    forget_schemas(storage)
    for other in others:
        other.forget()


def _groups(shards: list[HeldShard], shard_bytes: int) -> list[list[HeldShard]]:
    """Return which shards to put together: neighbours that fill at most one, and at least two of them."""
    small = [shard for shard in shards if shard.size_bytes <= shard_bytes // 2]
    small.sort(key=lambda shard: shard.bounds or (0, 0))
    groups: list[list[HeldShard]] = [[]]
    for shard in small:
        if sum(one.size_bytes for one in groups[-1]) + shard.size_bytes > shard_bytes:
            groups.append([])
        groups[-1].append(shard)
    return [group for group in groups if len(group) > 1]
