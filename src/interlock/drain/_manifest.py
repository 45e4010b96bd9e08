"""The manifest: which shards are committed, one line each.

A row is committed when its shard's line is on the storage. Each rank has a manifest of its own; together they are the
dataset. A line may say that its shard replaces others, as after compaction, or that shards are gone whose rows are all
in others: such shards count no more, in whichever manifest they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from interlock.drain._files import seal, unseal
from interlock.drain._layout import CONTROL
from interlock.drain._unsynced import UnsyncedNote
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.drain._storage import Storage

_FREE_ROWS = 4096
_MOST_ROWS_PER_BYTE = 256
"""No format packs ids closer. So a manifest cannot make a reader take more than 32 bytes for each that lies there."""


@final
@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One committed shard.

    Attributes:
        shard: Its name.
        rows: Number of rows.
        size_bytes: Bytes of its files.
        digest: Of its bytes, as `interlock.drain._digests` says.
        ids: Code of its ids, as `interlock.drain._idcodes` says.
        replaces: Shards that count no more.
    """

    shard: str
    rows: int
    size_bytes: int
    digest: str
    ids: str
    replaces: tuple[str, ...] = ()

    def line(self) -> bytes:
        """Return the line of the manifest."""
        value = {"shard": self.shard, "rows": self.rows, "bytes": self.size_bytes, "digest": self.digest}
        more = {"replaces": list(self.replaces)} if self.replaces else {}
        return seal({**value, "ids": self.ids, **more})

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardRecord:
        """Undo `line`.

        Raises:
            ValueError: The value is no record, or claims more rows than there can be in so many bytes.
        """
        try:
            rows, size_bytes = int(value["rows"]), int(value["bytes"])
            names = tuple(str(name) for name in value.get("replaces", ()))
            old = f"sha256:{value['sha256']}" if "sha256" in value else ""  # from before there was another kind
            digest = old or str(value["digest"])
            record = cls(str(value["shard"]), rows, size_bytes, digest, str(value["ids"]), names)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"it is no record: {error}") from error
        if not 0 < rows <= most_rows(size_bytes):
            raise ValueError(f"it says {rows:,} rows in {size_bytes:,} bytes")
        return record


def most_rows(size_bytes: int) -> int:
    """Return how many rows there can be in a shard of so many bytes."""
    return _FREE_ROWS + _MOST_ROWS_PER_BYTE * size_bytes


def gone_line(names: list[str]) -> bytes:
    """Return the line which says that shards count no more, since all their rows are in others."""
    return seal({"gone": names})


@final
class ManifestReader:
    """Reads the manifest of one rank, line by line.

    Args:
        storage: The folder, as the rank sees it.

    Attributes:
        rank: Whose it is.
        problems: What is wrong with lines before the last, once they were read.
        losses: The same of lines that nobody synced: a power cut did that, and whoever opens the sink mends it.
        whole_bytes: Offset at which a torn last line begins, else the length of the file, once it was read.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.rank = storage.layout.rank
        self.problems: list[str] = []
        self.losses: list[str] = []
        self.whole_bytes = 0

    def gone(self) -> set[str]:
        """Return the names of shards that lines say are replaced or gone."""
        names: set[str] = set()
        for _, line in self._storage.lines(self._storage.layout.manifest):
            if b'"replaces":' in line or line.startswith(b'{"gone":'):
                value = unseal(line) or {}
                told = value.get("replaces") or value.get("gone")
                names.update(map(str, told if isinstance(told, list) else ()))
        return names

    def records(self) -> Iterator[ShardRecord]:
        """Yield what the lines say, oldest first; afterwards `problems` and `whole_bytes` are known."""
        self.problems, self.losses, self.whole_bytes = [], [], 0
        note = UnsyncedNote.read(self._storage)
        damaged = ""
        for number, (end, line) in enumerate(self._storage.lines(self._storage.layout.manifest), 1):
            if damaged:  # it was not the last line, so no crash of a process tore it
                is_synced = note is None or self.whole_bytes < note.since_bytes
                (self.problems if is_synced else self.losses).append(damaged)
            value = unseal(line)
            damaged = "" if value is not None else f"line {number} does not match its check"
            if value is None:
                continue
            self.whole_bytes = end
            if "gone" in value:
                continue
            if not self._storage.layout.owns_name(str(value.get("shard"))):
                self.problems.append(f"line {number} names {value.get('shard')!r}, which is no shard of this sink")
                continue
            try:
                yield ShardRecord.from_json(value)
            except ValueError as error:
                self.problems.append(f"line {number}: {error}")


@final
class Manifests:
    """The manifests of all ranks: one dataset.

    Args:
        storage: The folder, as any rank sees it.

    Attributes:
        readers: One for each rank, lowest first.
        gone: Shards that count no more.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.readers = [ManifestReader(storage.of(rank)) for rank in storage.ranks()]
        self.gone = {name for reader in self.readers for name in reader.gone()}

    def records(self) -> Iterator[tuple[int, ShardRecord]]:
        """Yield the rank in whose manifest it is and the record of each shard that counts, once; lowest ranks first."""
        seen: set[str] = set()
        for reader in self.readers:
            for record in reader.records():
                if record.shard not in self.gone and record.shard not in seen:
                    seen.add(record.shard)
                    yield reader.rank, record

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is wrong: (manifest, what). Complete when the records were read."""
        return [(self._name(reader), problem) for reader in self.readers for problem in reader.problems]

    @property
    def losses(self) -> list[tuple[str, str]]:
        """What a power cut took, as `problems`."""
        return [(self._name(reader), loss) for reader in self.readers for loss in reader.losses]

    def _name(self, reader: ManifestReader) -> str:
        return self._storage.layout.of(reader.rank).manifest.rpartition("/")[2]

    def refuse_damage(self) -> None:
        """Refuse manifests of which a line before the last is damaged, or names what cannot be a shard.

        Raises:
            SinkConflictError: One is.
        """
        for name, problem in self.problems:
            raise SinkConflictError(
                f"{self._storage.where(f'{CONTROL}/{name}')} is damaged",
                why=problem,
                hint="restore it from a copy, or start again with --restart",
            )
