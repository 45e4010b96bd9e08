"""The same id again: the same bytes are dropped, other bytes are refused with both places named.

This costs something only when it happens: the rows before it are committed, and the stored row is read back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._fence import Fence
from interlock._core._protocols import Export
from interlock._core._rows import RaggedRows
from interlock._waiting import wait
from interlock.drain._blocks import blocks_of, landed_of, size_of
from interlock.drain._leaves import Leaf, empty_of
from interlock.drain._outputs import leaves_of_rows
from interlock.drain._ragged import any_of_each, chosen
from interlock.drain._store import storage_errors
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._rows import Rows
    from interlock.drain._holdings import HeldShard
    from interlock.drain._ids import IdArray
    from interlock.drain._outputs import AnyLeaf
    from interlock.drain._store import Store

_MOST_CACHED_SHARDS = 8


@final
class Fetcher:
    """Brings arrays to the host where a put cannot go on without them.

    Args:
        timeout_s: Bound on each wait.

    Attributes:
        host_syncs: How often the host waited for a device.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.host_syncs = 0

    def __call__(self, leaf: Leaf, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return rows of an array.

        Blocks: until they are on the host.
        """
        taken = leaf.found(borrow=True).take(start, leaf.rows if stop is None else stop, borrow=True)
        what = f"the values of output {leaf.name!r}"
        if isinstance(taken, Export):
            self.host_syncs += not taken.ready.poll()
            wait(taken.ready, timeout_s=self._timeout_s, what=what)
            return np.array(taken.read())
        if not size_of(taken):
            return empty_of(taken)()
        blocks = blocks_of(taken)
        host = blocks[0].array.device.allocate_host(size_of(taken))
        copies = []
        for block in blocks:
            device, stream = block.array.device, block.array.device.stream("drain")
            device.wait(stream, block.array.ready)
            device.copy(
                host.slice(block.offset_bytes, block.size_bytes), block.array.memory.slice(0, block.size_bytes), stream
            )
            copies.append(device.record(stream))
        self.host_syncs += 1
        wait(Fence.EMPTY.join(*copies), timeout_s=self._timeout_s, what=what)
        return landed_of(taken).read(host.view(), 0)


def on_host(leaf: AnyLeaf, fetch: Fetcher) -> Rows:
    """Return the rows of a leaf on the host.

    Blocks: until they are there.
    """
    readers = {part.key: partial(fetch, part.leaf, part.start, part.stop) for part in leaf.parts(0, leaf.rows)}
    return leaf.reader(readers, 0, leaf.rows)()


def leaves_at(leaves: Sequence[AnyLeaf], places: IdArray, fetch: Fetcher) -> list[AnyLeaf]:
    """Return the leaves of some rows, at places that rise: by their framework where it can, else on the host.

    Blocks: for ragged leaves, and those that no framework holds, until they are on the host.
    """
    is_run = int(places[-1] - places[0]) == len(places) - 1
    rows: Any = slice(int(places[0]), int(places[-1]) + 1) if is_run else places
    found: list[AnyLeaf] = []
    for leaf in leaves:
        if isinstance(leaf, Leaf) and leaf.framework is not None:
            found.append(Leaf(leaf.name, leaf.value[rows], leaf.framework, len(places), leaf.row_bytes))
        else:
            found += leaves_of_rows({leaf.name: on_host(leaf, fetch)}, places)
    return found


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """The ids of a shard, sorted, and where each is."""

    ids: IdArray
    positions: npt.NDArray[np.int64]


@final
class StoredRows:
    """Finds committed rows by id. Only while no other thread commits.

    Args:
        store: The opened folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: OrderedDict[str, _Known] = OrderedDict()

    def refuse_other_bytes(self, ids: IdArray, rows: IdArray, columns: Mapping[str, Rows]) -> None:
        """Compare rows with the committed ones of the same ids.

        Args:
            ids: Ids, all committed.
            rows: Their row numbers in the put, for the message.
            columns: Their values.

        Raises:
            UsageError: One of them differs.
            SinkError: They cannot be read.
        """
        with storage_errors(self._store.text, "read"):
            self._compare(ids, rows, columns)

    def _compare(self, ids: IdArray, rows: IdArray, columns: Mapping[str, Rows]) -> None:
        for record, here, positions in self._places(ids):
            stored = self._store.sink.read_rows(self._store.storage.fetch(record.name), positions.tolist())
            for name, column in columns.items():
                differs = differing(chosen(column, here), stored[name])
                if differs.any():
                    first = int(np.flatnonzero(differs)[0])
                    raise UsageError(
                        f"id {ids[here][first]!s} was put twice with different values in output {name!r}",
                        why=f"row {rows[here][first]} of this put is not row {positions[first]} of {record.name}",
                        hint="give each row an id of its own, or write to another sink",
                    )

    def _places(self, ids: IdArray) -> Iterator[tuple[HeldShard, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield each shard that holds some of `ids`, with their positions in `ids` and in the shard."""
        left = np.arange(len(ids))
        for record in reversed(self._store.shards):
            if not left.size:
                return
            if not _may_hold(record, ids[left]):
                continue
            known = self._known(record)
            at = np.minimum(np.searchsorted(known.ids, ids[left]), len(known.ids) - 1)
            found = known.ids[at] == ids[left]
            if found.any():
                yield record, left[found], known.positions[at[found]]
                left = left[~found]

    def _known(self, record: HeldShard) -> _Known:
        if record.name in self._cache:
            self._cache.move_to_end(record.name)
            return self._cache[record.name]
        ids = self._store.sink.read_shard(self._store.storage.fetch(record.name)).ids
        order = np.argsort(ids, kind="stable")
        known = self._cache[record.name] = _Known(ids[order], order)
        if len(self._cache) > _MOST_CACHED_SHARDS:
            self._cache.popitem(last=False)
        return known


def _may_hold(shard: HeldShard, ids: IdArray) -> bool:
    bounds = shard.bounds
    return bounds is None or bool(((ids >= bounds[0]) & (ids <= bounds[1])).any())


def differing(left: Rows, right: Rows) -> npt.NDArray[np.bool_]:
    """Return which rows differ in a byte: NaN equals itself, and -0.0 is not 0.0. Both are as many, of one dtype."""
    if not isinstance(left, RaggedRows) or not isinstance(right, RaggedRows):
        return _differing(np.asarray(left), np.asarray(right))
    differs: npt.NDArray[np.bool_] = left.lengths != right.lengths
    alike = np.flatnonzero(~differs)
    mine, theirs = chosen(left, alike), chosen(right, alike)
    differs[alike] = any_of_each(mine, _differing(mine.values, theirs.values))
    return differs


def _differing(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    rows = len(left)
    if not rows:
        return np.zeros(0, np.bool_)
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right, left.dtype)
    differs: npt.NDArray[np.bool_] = (
        left.reshape(rows, -1).view(np.uint8) != right.reshape(rows, -1).view(np.uint8)
    ).any(axis=1)
    return differs
