"""What of a dataset is not committed, for a loader whose library shares it out among processes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.drain import read_committed
from interlock.drain._resume import PendingSource
from interlock.drain._storage import opened_storage
from interlock.drain._todo import Todo
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock.drain._idsets import IdView

_BLOCK_ROWS = 1 << 20
"""A multiple of eight, since the bits of a block fill bytes."""


def committed_so_far(sink: str) -> IdView | None:
    """Return the ids of all committed rows of a sink, or None if nothing was ever written to it.

    Raises:
        UsageError: There is no such sink, or it holds something else.
    """
    _, storage = opened_storage(sink)
    return read_committed(sink) if storage.has(storage.layout.run_file) else None


def pending_samples(dataset: Any, committed: IdView | None, name: str | None) -> PendingSource:
    """Return the samples of a map-style dataset whose rows are not committed. They keep their ids.

    Args:
        dataset: Its ids are what its `id_of(index)` returns if it has that, else row numbers.
        committed: Ids that are done.
        name: What comes before each id, and a slash; None: nothing.

    Raises:
        UsageError: `dataset` is not map-style.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"a {type(dataset).__name__} has no samples that can be left out",
            why="it has no __len__ and __getitem__",
            hint="leave out the samples in its __iter__, as Drain.pending does",
        )
    count = len(dataset)
    bits = np.zeros(-(-count // 8), np.uint8)
    for start in range(0, count, _BLOCK_ROWS):
        rows = range(start, min(start + _BLOCK_ROWS, count))
        done = None if committed is None else committed.contains_many(ids_of_rows(dataset, rows, name))
        packed = np.packbits(np.ones(len(rows), np.bool_) if done is None else ~done, bitorder="little")
        bits[start // 8 : start // 8 + len(packed)] = packed
    return PendingSource(dataset, Todo(range(count), bits))


def ids_of_rows(dataset: Any, rows: Any, name: str | None) -> Any:
    """Return the ids of rows of a dataset."""
    id_of = getattr(dataset, "id_of", None)
    if id_of is not None:
        rows = [id_of(row) for row in rows]
    if name is not None:
        return [f"{name}/{row}" for row in rows]
    return np.asarray(rows) if isinstance(rows, range) else rows
