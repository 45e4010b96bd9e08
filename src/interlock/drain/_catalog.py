"""What readers of a sink ask which shards there are, as a Delta log, kept in step with the manifests.

Most sinks have none: their readers look at names, and nothing here does anything. Where there is one,

- a new shard is listed before its line is in the manifest: so what is committed is listed, at every moment;
- a shard that replaces others is listed, and they are not, after its line is: until then readers see the others, which
  stay where they are.

What a crash leaves between the two is done by whoever opens the folder next.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast, final

from interlock._core._protocols import ListedShard
from interlock.drain._layout import parse_name
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from interlock._core._protocols import Sink, SupportsCatalog
    from interlock.drain._holdings import HeldShard
    from interlock.drain._storage import Storage


@final
class Catalog:
    """The catalogue of a sink's folder, if the sink has one.

    Args:
        text: The sink, for messages.
        sink: The format.
        storage: The folder, as any rank sees it; on this machine, if there is one: see `opened_storage`.

    Attributes:
        is_kept: Whether there is one.
    """

    def __init__(self, text: str, sink: Sink, storage: Storage) -> None:
        self._text = text
        self._sink = cast("SupportsCatalog", sink)
        self._storage = storage
        self._root = Path(storage.place)
        self.is_kept = hasattr(sink, "publish")

    def add(self, shard: HeldShard) -> None:
        """List a shard that is in place and synced."""
        if self.is_kept:
            self._sink.publish(self._root, [_listed(shard)], [])

    def replace(self, shards: Iterable[HeldShard], names: Iterable[str]) -> None:
        """List shards in place of others of which they hold all rows that are not elsewhere."""
        if self.is_kept:
            self._sink.publish(self._root, [_listed(shard) for shard in shards], list(names))

    def forget(self, name: str) -> None:
        """List a shard no more, if it is listed."""
        if self.is_kept and name in (self._sink.listed(self._root) or ()):
            self._sink.publish(self._root, [], [name])

    def discard(self, run: str) -> None:
        """Remove the catalogue.

        Raises:
            SinkConflictError: Something else has written to it.
        """
        if self.is_kept:
            self._refuse_strangers(self._sink.listed(self._root) or frozenset(), run)
            self._sink.discard(self._root)

    def catch_up(
        self, shards: Iterable[HeldShard], replaced: Mapping[str, tuple[str, ...]], gone: AbstractSet[str], run: str
    ) -> None:
        """Do what a crash left undone: list shards in place of those that they replace, and none that are lost.

        Args:
            shards: What is committed.
            replaced: Names of the shards that one of them replaces.
            gone: Shards that count no more.
            run: Whose shards they are.

        Raises:
            SinkConflictError: Something else has changed the catalogue, so that to go on might double rows.
        """
        if not self.is_kept:
            return
        committed = {shard.name: shard for shard in shards}
        listed = self._sink.listed(self._root)
        missing = [shard for name, shard in committed.items() if name not in (listed or ())]
        stale: set[str] = set()
        if listed is not None:  # else a restart was cut, or nothing was ever listed
            self._refuse_strangers(listed, run)
            self._refuse_removal(missing, replaced, listed)
            here = set(self._storage.visible())
            stale = {name for name in listed if name in gone or not (name in committed or name in here)}
        if missing or stale:
            self.replace(missing, sorted(stale))

    def problems(
        self, committed: AbstractSet[str], gone: AbstractSet[str], *, is_written: bool
    ) -> list[tuple[str, str]]:
        """Return what differs between the catalogue and what is committed: (shard, what). Changes nothing."""
        if not self.is_kept:
            return []
        listed = self._sink.listed(self._root) or frozenset()
        found = [(name, "it is committed and not in the catalogue") for name in sorted(committed - listed)]
        for name in sorted(listed - committed):
            if name in gone:
                found.append((name, "it was replaced and is still in the catalogue: merge again"))
            elif not (is_written and self._storage.layout.owns_name(name)):
                found.append((name, "it is in the catalogue and not in the manifest"))
        return found

    def _refuse_removal(
        self, missing: Iterable[HeldShard], replaced: Mapping[str, tuple[str, ...]], listed: AbstractSet[str]
    ) -> None:
        for shard in missing:
            names = replaced.get(shard.name, ())
            if not names or not listed >= set(names):
                raise SinkConflictError(
                    f"shard {shard.name} is not in the catalogue of {self._text}",
                    why="it was listed before it was committed: something else has taken it out since, and its rows "
                    "may be in other files now",
                    hint="write to another sink, or begin anew with --restart",
                )

    def _refuse_strangers(self, listed: Iterable[str], run: str) -> None:
        for name in sorted(listed):
            parsed = parse_name(name)
            if parsed is None or parsed.run != run[:8]:
                raise SinkConflictError(
                    f"the catalogue of {self._text} lists {name}",
                    why="something else has written to it, so rows may be there that no manifest knows",
                    hint="write to another sink",
                )


def _listed(shard: HeldShard) -> ListedShard:
    return ListedShard(shard.name, shard.rows, shard.size_bytes, shard.bounds)
