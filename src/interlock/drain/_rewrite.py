"""A sink's folder opened for maintenance, and shards rewritten in it so that a crash at any step loses nothing.

| step | after it |
| --- | --- |
| `open`, `write`, `close`, `sync`, `hash` | the new shard is whole and on the storage, under a temporary name |
| `record` | its line, which says what it replaces, is on the storage: from here on it counts, and they do not |
| `hide` | readers see none of the shards that it replaces |
| `show` | and see the new one |
| `sync-folder` | its name is on the storage |
| `publish` | the catalogue that the sink's readers ask, if there is one, lists it in place of them |

Killed before `record`, everything is as it was; after it, whoever opens the folder next does the rest. Between `hide`
and `show` a reader that knows only file names misses rows; at no time does it see one twice. Where there is a catalogue
nothing is hidden: what it lists no more stays for readers that asked before, and whoever vacuums it removes that.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from interlock.drain._digests import digest_of
from interlock.drain._files import remove, size_of
from interlock.drain._holdings import HeldShard, Holdings, append_line
from interlock.drain._idcodes import encode_ids
from interlock.drain._manifest import ShardRecord, gone_line
from interlock.drain._powercut import settle_unsynced
from interlock.drain._storage import opened_storage
from interlock.drain._store import dead_ranks, refuse_foreign, storage_errors
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from interlock._core._protocols import ShardWriter, Sink
    from interlock._core._rows import Rows
    from interlock.drain._ids import IdArray
    from interlock.drain._run import RunRecord
    from interlock.drain._storage import Storage

STEPS = ("open", "write", "close", "sync", "hash", "record", "hide", "show", "sync-folder", "publish", "end")

_SLICE_BYTES = 32 << 20


def run_step(name: str, action: Callable[[], None]) -> None:  # noqa: ARG001 - tests stop the process at a name
    """Do one step of the protocol."""
    action()


@final
@dataclass(slots=True)
class Workshop:
    """A folder in the hands of one who mends or rewrites it. Nobody opens it meanwhile.

    Attributes:
        text: The sink, as `parquet:out`.
        sink: The format.
        storage: The folder, as rank 0 sees it.
        run: What the dataset is.
        holdings: The committed shards.
        ranks: The ranks that nobody else writes as.
    """

    text: str
    sink: Sink
    storage: Storage
    run: RunRecord
    holdings: Holdings
    ranks: set[int]
    _numbers: dict[int, int] = field(default_factory=dict)

    def path(self, shard: HeldShard) -> Path:
        """Return where a shard can be read."""
        return self.storage.fetch(shard.name)

    def ids_of(self, shard: HeldShard) -> IdArray:
        """Return the ids of a shard, in the order of its rows."""
        return self.sink.read_shard(self.path(shard)).ids

    def rewrite(self, home: int, parts: list[tuple[HeldShard, npt.NDArray[np.int64]]]) -> HeldShard:
        """Replace shards by one that holds some of their rows.

        Args:
            home: The rank in whose manifest the new one is; one of `ranks`.
            parts: Shards, and the positions of the rows to keep.

        Raises:
            OSError: The storage refused; before `record`, nothing has changed.
        """
        storage = self.storage.of(home)
        storage.make()
        name = storage.layout.shard_name(self.run.run, self._next_number(home))
        temporary = storage.temporary(name)
        remove(temporary)
        ids = self._write(temporary, parts)
        replaced = tuple(shard.name for shard, _ in parts)
        record = self._seal(storage, name, ids, replaced)
        run_step("record", lambda: append_line(storage, record.line()))
        self._hide(storage, replaced)
        run_step("show", lambda: storage.show(name))
        run_step("sync-folder", storage.sync_names)
        made = HeldShard.of(home, record, ids)
        run_step("publish", lambda: self.holdings.catalog.replace([made], replaced))
        run_step("end", lambda: None)
        return made

    def drop(self, shard: HeldShard) -> None:
        """Remove a shard whose rows are all in others.

        Raises:
            OSError: The storage refused.
        """
        storage = self.storage.of(shard.home)
        storage.make()
        self._next_number(shard.home)  # so that no other shard gets its name, which counts no more
        run_step("record", lambda: append_line(storage, gone_line([shard.name])))
        self._hide(storage, (shard.name,))
        run_step("sync-folder", storage.sync_names)
        run_step("publish", lambda: self.holdings.catalog.replace([], [shard.name]))

    def _next_number(self, home: int) -> int:
        if home not in self._numbers:
            self._numbers[home] = max(self.holdings.numbers(home), default=-1)
        self._numbers[home] += 1
        return self._numbers[home]

    def _write(self, temporary: Path, parts: list[tuple[HeldShard, npt.NDArray[np.int64]]]) -> IdArray:
        writers: list[ShardWriter] = []
        run_step("open", lambda: writers.append(self.sink.open_shard(temporary, run=self.run.run)))
        ids: list[IdArray] = []
        try:
            for some, columns in self._slices(parts):
                run_step("write", lambda some=some, columns=columns: writers[0].write(some, columns))  # type: ignore[misc]
                ids.append(some)
            run_step("close", writers[0].close)
        except BaseException:
            with suppress(OSError):
                writers[0].abandon()
                remove(temporary)
            raise
        return np.concatenate(ids)

    def _slices(
        self, parts: list[tuple[HeldShard, npt.NDArray[np.int64]]]
    ) -> Iterator[tuple[IdArray, Mapping[str, Rows]]]:
        """Yield ids and columns of some rows at a time."""
        for shard, positions in parts:
            ids = self.ids_of(shard)
            rows = max(1, _SLICE_BYTES * shard.rows // max(1, shard.size_bytes))
            for start in range(0, len(positions), rows):
                wanted = positions[start : start + rows]
                yield ids[wanted], self.sink.read_rows(self.path(shard), wanted.tolist())

    def _seal(self, storage: Storage, name: str, ids: IdArray, replaced: tuple[str, ...]) -> ShardRecord:
        temporary = storage.temporary(name)
        run_step("sync", lambda: storage.bring(name, hidden=True))
        digests: list[str] = []
        run_step("hash", lambda: digests.append(digest_of(temporary)))
        return ShardRecord(name, len(ids), size_of(temporary), digests[0], encode_ids(ids), replaced)

    def _hide(self, storage: Storage, names: tuple[str, ...]) -> None:
        for name in () if self.holdings.catalog.is_kept else names:
            run_step("hide", lambda name=name: storage.remove_shard(name))  # type: ignore[misc]


@contextmanager
def opened_workshop(text: str, *, alone: bool, wait_s: float = 60.0) -> Iterator[Workshop]:
    """Open a sink's folder to mend or to rewrite it.

    Args:
        text: The sink, as `parquet:out`.
        alone: Whether live writers are refused; else their ranks are left to them.
        wait_s: How long to wait while others open or rewrite.

    Raises:
        SinkConflictError: There is nothing, or something else; it is damaged; or it is being written.
        SinkError: The storage refused.
    """
    with storage_errors(text, "rewrite"), ExitStack() as held:
        sink, storage = opened_storage(text)
        if refuse_foreign(storage, sink, text) is None:
            run_file = storage.where(storage.layout.run_file)
            raise SinkConflictError(f"there is nothing at {text}", why=f"{run_file} is not there")
        storage.make()
        held.callback(storage.lock(storage.layout.opening, text, wait_s=wait_s).release)
        storage.refresh()
        run = refuse_foreign(storage, sink, text)
        assert run is not None  # noqa: S101 - nobody takes it away
        ranks = dead_ranks(storage, text, storage.ranks())
        living = sorted(set(storage.ranks()) - ranks)
        if living and alone:
            raise SinkConflictError(
                f"{text} is being written", why=f"rank {living[0]} lives", hint="wait until it ends"
            )
        for rank in ranks:
            settle_unsynced(text, storage.of(rank), keep=not alone)
        holdings = Holdings(text, sink, storage)
        holdings.load(run)
        if holdings.mend(ranks, run):  # what it committed may be in other shards too: read all in their order
            holdings = Holdings(text, sink, storage)
            holdings.load(run)
        yield Workshop(text, sink, storage, run, holdings, ranks)
