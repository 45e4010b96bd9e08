"""What a sink's folder holds, over all ranks, and how what a crash left is taken up.

Read and mended only while nobody else opens, settles or rewrites: see `Layout.opening`.

What is not in a manifest is not committed, whatever lies in the folder. A shard that a crash left between its rename
and its record is whole and is *adopted*, synced if it was not before; anything doubtful goes to quarantine with a
warning.
A shard that replaces others is recorded first, then the others go, then it is renamed: a crash between is rolled
forward here, and no reader ever sees a row twice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from interlock.drain._catalog import Catalog
from interlock.drain._digests import digest_of
from interlock.drain._files import size_of
from interlock.drain._idcodes import encode_ids, parse_code
from interlock.drain._ids import first_of_each, kind_of
from interlock.drain._idsets import IdSet
from interlock.drain._layout import parse_name
from interlock.drain._manifest import Manifests, ShardRecord
from interlock.errors import SinkConflictError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock._core._protocols import ShardContent, Sink
    from interlock.drain._ids import IdArray
    from interlock.drain._run import RunRecord
    from interlock.drain._storage import Storage


@final
@dataclass(frozen=True, slots=True)
class HeldShard:
    """A committed shard, without the code of its ids, which may be long.

    Attributes:
        name: Its name.
        home: The rank in whose manifest it is.
        rows: Number of rows.
        size_bytes: Bytes of its files.
        bounds: The smallest and the largest id; None if they are strings.
    """

    name: str
    home: int
    rows: int
    size_bytes: int
    bounds: tuple[int, int] | None

    @classmethod
    def of(cls, home: int, record: ShardRecord, ids: IdArray) -> HeldShard:
        """Return what to keep of a record."""
        bounds = None if kind_of(ids) == "str" else (int(ids.min()), int(ids.max()))
        return cls(record.shard, home, record.rows, record.size_bytes, bounds)


@final
class Holdings:
    """The committed shards and their ids.

    Args:
        text: The sink, for messages.
        sink: The format.
        storage: The folder, as any rank sees it.

    Attributes:
        catalog: What readers ask, if the sink has such a thing.
        shards: The committed shards: those of the lowest rank first, each rank's oldest first.
        committed: Ids of their rows.
        overlapping: Shards of which rows are in ones before.
    """

    def __init__(self, text: str, sink: Sink, storage: Storage) -> None:
        self._text = text
        self._sink = sink
        self._storage = storage
        self.catalog = Catalog(text, sink, storage)
        self.shards: list[HeldShard] = []
        self.committed = IdSet()
        self.overlapping: list[HeldShard] = []
        self._manifests = Manifests(storage)

    def load(self, run: RunRecord) -> None:
        """Read the manifests, and finish what was cut while shards were replaced.

        Args:
            run: What the dataset is.

        Raises:
            SinkConflictError: A manifest is damaged, or a shard is not what its record says; or the catalogue lists
                other shards.
        """
        moved = not self.catalog.is_kept and self._remove_gone()
        replaced = {}
        for home, record in self._manifests.records():
            moved |= self._show(home, record)
            self._check(record)
            self._hold(home, record)
            if record.replaces:
                replaced[record.shard] = record.replaces
        if moved:
            self._storage.sync_names()
        self._manifests.refuse_damage()
        self.catalog.catch_up(self.shards, replaced, self._manifests.gone, run.run)

    def _remove_gone(self) -> bool:
        owns = self._storage.layout.owns_name
        left = [name for name in self._storage.visible() if name in self._manifests.gone and owns(name)]
        for name in left:
            self._storage.remove_shard(name)
        return bool(left)

    def _show(self, home: int, record: ShardRecord) -> bool:
        storage = self._storage.of(home)
        if storage.size_of(record.shard) is not None or storage.size_of(record.shard, hidden=True) is None:
            return False
        storage.show(record.shard)
        return True

    def _check(self, record: ShardRecord) -> None:
        found = self._storage.size_of(record.shard)
        if found != record.size_bytes:
            state = "is missing" if found is None else f"has {found:,} bytes"
            raise SinkConflictError(
                f"shard {self._storage.where(record.shard)} {state}",
                why=f"the manifest says that it has {record.size_bytes:,} bytes",
                hint=f"see what else is damaged with: interlock verify {self._text}",
            )

    def _hold(self, home: int, record: ShardRecord) -> None:
        bounds = None
        try:
            code = parse_code(record.ids, record.rows)
            if code is None:
                added = self.committed.add_many(self._sink.read_shard(self._storage.fetch(record.shard)).ids)
            else:
                added, bounds = self.committed.add_code(code), (code.first, code.last)
        except UsageError as error:
            raise SinkConflictError(
                f"the ids of shard {record.shard} cannot be read",
                why=str(error),
                hint=f"see what is damaged with: interlock verify {self._text}",
            ) from error
        shard = HeldShard(record.shard, home, record.rows, record.size_bytes, bounds)
        self.shards.append(shard)
        if added < record.rows:
            self.overlapping.append(shard)

    def add(self, home: int, record: ShardRecord, ids: IdArray) -> None:
        """Take up a shard that was committed just now."""
        self.shards.append(HeldShard.of(home, record, ids))
        self.committed.add_many(ids)

    def numbers(self, rank: int) -> Iterator[int]:
        """Yield the numbers that shards of a rank have or had."""
        for name in (*self._storage.visible(), *(shard.name for shard in self.shards), *self._manifests.gone):
            parsed = parse_name(name)
            if parsed is not None and parsed.rank == rank:
                yield parsed.number

    def mend(self, ranks: set[int], run: RunRecord) -> bool:
        """Take up what dead writers left: torn lines, temporaries, shards without a record.

        Args:
            ranks: Whose; nobody else writes as one of them now.
            run: What the dataset is.

        Returns:
            Whether a shard was committed. It is the last of `shards` then, and not looked for in `overlapping`.
        """
        for reader in self._manifests.readers:
            if reader.rank in ranks:
                storage = self._storage.of(reader.rank)
                storage.cut_log(storage.layout.manifest, reader.whole_bytes)
                storage.clear()
        before = len(self.shards)
        known = {shard.name for shard in self.shards} | self._manifests.gone
        for name in self._storage.visible():
            parsed = parse_name(name)
            if name not in known and parsed and parsed.rank in ranks and self._storage.layout.owns_name(name):
                doubt = self._adopt(name, parsed.rank, run)
                if doubt:
                    self._isolate(name, parsed.rank, doubt)
        return len(self.shards) > before

    def _adopt(self, name: str, rank: int, run: RunRecord) -> str:
        """Commit a shard that a crash left without its record; return why not if it cannot be."""
        storage = self._storage.of(rank)
        try:
            path = storage.fetch(name)
            content = self._sink.read_shard(path)
            doubt = self._doubt(content, rank, run)
            if doubt:
                return doubt
            record = ShardRecord(name, len(content.ids), size_of(path), digest_of(path), encode_ids(content.ids))
        except (UsageError, OSError) as error:
            return f"it cannot be read: {error}"
        try:
            storage.sync_shard(name)
            storage.sync_names()
        except OSError as error:  # so nobody knows what of it is there to stay: its rows are made again
            return f"it cannot be synced: {error}"
        self.catalog.add(HeldShard.of(rank, record, content.ids))
        append_line(storage, record.line())
        self.add(rank, record, content.ids)
        return ""

    def _doubt(self, content: ShardContent, rank: int, run: RunRecord) -> str:
        """Return why a shard that can be read is not one of ours; empty if it is."""
        ids = content.ids
        if content.run != run.run:
            return "another run wrote it"
        if not ids.size or not bool(first_of_each(ids).all()):
            return "it has no rows, or one of them twice"
        if self.shards and kind_of(ids) != run.ids:
            return "its ids are of another kind"
        if bool(np.any(self.committed.contains_many(ids))) and self._has_rows(rank, ids):
            return "rows of it are in other shards"
        return ""

    def _has_rows(self, rank: int, ids: IdArray) -> bool:
        """Tell whether a rank has rows in its own shards; what several ranks have is no damage: see `_settle`."""
        own = IdSet()
        for shard in self.shards:
            if shard.home == rank:
                own.add_many(self._sink.read_shard(self._storage.fetch(shard.name)).ids)
        return bool(own.contains_many(ids).any())

    def _isolate(self, name: str, rank: int, doubt: str) -> None:
        self.catalog.forget(name)
        place = self._storage.of(rank).isolate(name)
        warnings.warn(
            f"shard {name} of {self._text} is not in the manifest and was moved to {place}: {doubt}",
            RuntimeWarning,
            stacklevel=2,
        )


def append_line(storage: Storage, line: bytes) -> None:
    """Append one line to the manifest of a rank that is not written now, and wait until it is on the storage."""
    log = storage.log(storage.layout.manifest)
    try:
        log.append(line)
        log.sync()
    finally:
        log.close()
