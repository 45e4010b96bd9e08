"""Rows that several ranks wrote, as samplers that pad make them: each is kept once.

Ranks know nothing of each other while they run, so the same id may be in shards of several. Of those the first counts,
in the order of the manifests: lowest rank first, each rank's oldest shard first. That is the same whoever asks, and
whenever. The others are rewritten without it, when a rank closes or by `interlock merge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from interlock.drain._duplicates import differing
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    import numpy.typing as npt

    from interlock.drain._holdings import HeldShard
    from interlock.drain._ids import IdArray, Mask
    from interlock.drain._rewrite import Workshop

Repeats: TypeAlias = Literal["same", "first"]
"""What rows of one id must be: `same`, byte for byte, or anything, and the `first` counts."""

_COMPARED_ROWS = 1024


def settle(work: Workshop, repeats: Repeats) -> int:
    """Remove rows that are in a shard before, where nobody else writes; return how many.

    Raises:
        SinkConflictError: Two rows of one id differ, and `repeats` is `same`: their shards stay, others are settled.
        OSError: The storage refused.
    """
    removed = 0
    conflict: SinkConflictError | None = None
    shards = work.holdings.shards
    for shard in work.holdings.overlapping:
        if shard.home not in work.ranks:
            continue
        at = shards.index(shard)
        ids = work.ids_of(shard)
        try:
            again = _again(work, shard, ids, shards[:at], repeats)
        except SinkConflictError as error:
            conflict = conflict or error
            continue
        keep = np.flatnonzero(~again)
        removed += len(ids) - len(keep)
        if len(keep) == len(ids):
            continue
        if len(keep):
            shards[at] = work.rewrite(shard.home, [(shard, keep)])
        else:
            work.drop(shard)
            del shards[at]
    work.holdings.overlapping.clear()
    if conflict is not None:
        raise conflict
    return removed


def _again(work: Workshop, shard: HeldShard, ids: IdArray, before: list[HeldShard], repeats: Repeats) -> Mask:
    """Return which rows of a shard are in shards before."""
    again = np.zeros(len(ids), np.bool_)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    for other in before:
        if not _may_share(shard, other):
            continue
        theirs = work.ids_of(other)
        at = np.minimum(np.searchsorted(ordered, theirs), len(ids) - 1)
        places = np.flatnonzero(ordered[at] == theirs)
        mine = order[at[places]]
        if repeats == "same":
            _refuse_other_bytes(work, shard, mine, other, places)
        again[mine] = True
    return again


def _may_share(one: HeldShard, other: HeldShard) -> bool:
    if one.bounds is None or other.bounds is None:
        return True
    return one.bounds[0] <= other.bounds[1] and other.bounds[0] <= one.bounds[1]


def _refuse_other_bytes(
    work: Workshop, one: HeldShard, mine: npt.NDArray[np.int64], other: HeldShard, theirs: npt.NDArray[np.int64]
) -> None:
    for start in range(0, len(mine), _COMPARED_ROWS):
        here, there = mine[start : start + _COMPARED_ROWS], theirs[start : start + _COMPARED_ROWS]
        left = work.sink.read_rows(work.path(one), here.tolist())
        right = work.sink.read_rows(work.path(other), there.tolist())
        for name, column in left.items():
            differs = differing(column, right[name])
            if differs.any():
                first = int(np.flatnonzero(differs)[0])
                one_id = work.ids_of(one)[here[first]]
                raise SinkConflictError(
                    f"id {one_id!s} has two values of output {name!r} in {work.text}",
                    why=f"row {here[first]} of {one.name} is not row {there[first]} of {other.name}",
                    hint=f"keep the first of each with: interlock merge {work.text} --keep-first",
                )
