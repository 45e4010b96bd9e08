"""Shards that nobody synced, when a sink is opened: what a power cut took is set aside, the rest is synced."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, final

from interlock.drain._digests import has_digest
from interlock.drain._files import unseal
from interlock.drain._layout import parse_name
from interlock.drain._manifest import Manifests, ShardRecord
from interlock.drain._unsynced import UnsyncedNote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.drain._storage import Storage


def settle_unsynced(text: str, storage: Storage, *, keep: bool) -> None:
    """Bring what a rank did not sync to the storage, and set aside what did not survive. Nobody writes as that rank.

    Args:
        text: The sink, for messages.
        storage: The folder, as the rank sees it.
        keep: Leave it as it is, if the machine has run since.

    Raises:
        OSError: The storage refused.

    Blocks: while it reads all those shards, if the machine was started anew.
    """
    note = UnsyncedNote.read(storage)
    if note is None or (keep and note.is_of_this_boot):
        return
    survey = _Survey(storage, note)
    if not note.is_of_this_boot:
        survey.set_damage_aside()
        survey.warn(text)
    survey.sync()
    storage.remove(storage.layout.unsynced)


@final
class _Survey:
    """The shards of one rank that nobody synced."""

    def __init__(self, storage: Storage, note: UnsyncedNote) -> None:
        self._storage = storage
        self._layout = storage.layout
        self._note = note
        self._lost: list[str] = []

    def set_damage_aside(self) -> None:
        """Keep of the manifest what can be believed, and of the shards those that it names."""
        manifests = Manifests(self._storage)
        known = {record.shard for _, record in manifests.records()} | manifests.gone
        self._storage.replace_log(self._layout.manifest, self._whole_lines(manifests.gone))
        for name in self._storage.visible():
            parsed = parse_name(name)
            if name not in known and parsed and parsed.rank == self._layout.rank and self._layout.owns_name(name):
                self._set_aside(name, "its line of the manifest is lost")

    def _whole_lines(self, gone: set[str]) -> Iterator[bytes]:
        for is_synced, line in self._lines():
            record = _record(line)
            if is_synced or (record is None and unseal(line)) or (record is not None and record.shard in gone):
                yield line
            elif record is not None:
                doubt = self._doubt(record)
                if doubt:
                    self._set_aside(record.shard, doubt)
                else:
                    yield line

    def _lines(self) -> Iterator[tuple[bool, bytes]]:
        """Yield each line of the manifest, and whether it was synced."""
        for end, line in self._storage.lines(self._layout.manifest):
            yield end <= self._note.since_bytes, line

    def _doubt(self, record: ShardRecord) -> str:
        """Return what is wrong with a shard; empty if it is whole."""
        if not self._layout.owns_name(record.shard):
            return "it is missing"
        try:
            found, is_hidden = self._found(record.shard)
            if found is None:
                return "it is missing"
            if found != record.size_bytes:
                return f"it has {found:,} bytes of {record.size_bytes:,}"
            path = self._storage.fetch(record.shard, hidden=is_hidden)
            return "" if has_digest(path, record.digest) else "its bytes do not match their hash"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"

    def _found(self, name: str) -> tuple[int | None, bool]:
        """Return the bytes of a shard, if it is there, and whether it is hidden: one that was rewritten may be."""
        found = self._storage.size_of(name)
        return (found, False) if found is not None else (self._storage.size_of(name, hidden=True), True)

    def _set_aside(self, name: str, doubt: str) -> None:
        if self._layout.owns_name(name) and self._storage.size_of(name) is not None:
            self._storage.isolate(name)
        self._lost.append(f"{name}: {doubt}")

    def warn(self, text: str) -> None:
        """Say what was lost."""
        if self._lost:
            warnings.warn(
                f"the machine was started anew since {text} was written with fsync='never', and shards did not survive "
                f"({len(self._lost)}: {'; '.join(self._lost[:3])}); their rows are pending again, and what is left of "
                f"them is in {self._storage.where(self._layout.quarantine)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def sync(self) -> None:
        """Sync the shards that are left, their names and their lines."""
        for is_synced, line in self._lines():
            record = None if is_synced else _record(line)
            if record is not None and self._layout.owns_name(record.shard):
                self._storage.sync_shard(record.shard)
        self._storage.sync_names()
        for log in (self._layout.manifest, self._layout.failures):
            if self._storage.has(log):
                self._storage.sync_log(log)


def _record(line: bytes) -> ShardRecord | None:
    """Return the record in a line, or None if it is damaged or says something else."""
    try:
        return ShardRecord.from_json(unseal(line) or {})
    except ValueError:
        return None
