"""Shards that nobody synced, when a sink is opened: what a power cut took is set aside, the rest is synced."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, final

from interlock.drain._digests import digest_of
from interlock.drain._files import remove, replace_lines, size_of, sync, sync_shard, unseal
from interlock.drain._layout import parse_name, set_aside
from interlock.drain._manifest import Manifests, ShardRecord
from interlock.drain._unsynced import UnsyncedNote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from interlock.drain._layout import Layout


def settle_unsynced(text: str, layout: Layout, *, keep: bool) -> None:
    """Bring what a rank did not sync to the storage, and set aside what did not survive. Nobody writes as that rank.

    Args:
        text: The sink, for messages.
        layout: The paths of the rank.
        keep: Leave it as it is, if the machine has run since.

    Raises:
        OSError: The storage refused.

    Blocks: while it reads all those shards, if the machine was started anew.
    """
    note = UnsyncedNote.read(layout)
    if note is None or (keep and note.is_of_this_boot):
        return
    survey = _Survey(layout, note)
    if not note.is_of_this_boot:
        survey.set_damage_aside()
        survey.warn(text)
    survey.sync()
    remove(layout.unsynced)
    sync(layout.control)


@final
class _Survey:
    """The shards of one rank that nobody synced."""

    def __init__(self, layout: Layout, note: UnsyncedNote) -> None:
        self._layout = layout
        self._note = note
        self._lost: list[str] = []

    def set_damage_aside(self) -> None:
        """Keep of the manifest what can be believed, and of the shards those that it names."""
        manifests = Manifests(self._layout)
        known = {record.shard for _, record in manifests.records()} | manifests.gone
        replace_lines(
            self._layout.manifest, self._layout.temporary("manifest.jsonl"), self._whole_lines(manifests.gone)
        )
        for name in self._layout.visible():
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
        end = 0
        if self._layout.manifest.exists():
            with self._layout.manifest.open("rb") as file:
                for line in file:
                    end += len(line)
                    yield end <= self._note.since_bytes, line

    def _doubt(self, record: ShardRecord) -> str:
        """Return what is wrong with a shard; empty if it is whole."""
        path = self._path(record.shard)
        if not self._layout.owns_name(record.shard) or not path.exists():
            return "it is missing"
        try:
            found = size_of(path)
            if found != record.size_bytes:
                return f"it has {found:,} bytes of {record.size_bytes:,}"
            return "" if digest_of(path) == record.sha256 else "its bytes do not match their hash"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"

    def _path(self, name: str) -> Path:
        """Return where a shard lies; one that was rewritten may not be shown yet."""
        shown, hidden = self._layout.root / name, self._layout.temporary(name)
        return hidden if hidden.exists() and not shown.exists() else shown

    def _set_aside(self, name: str, doubt: str) -> None:
        if self._layout.owns_name(name) and (self._layout.root / name).exists():
            set_aside(self._layout, name)
        self._lost.append(f"{name}: {doubt}")

    def warn(self, text: str) -> None:
        """Say what was lost."""
        if self._lost:
            warnings.warn(
                f"the machine was started anew since {text} was written with fsync='never', and shards did not survive "
                f"({len(self._lost)}: {'; '.join(self._lost[:3])}); their rows are pending again, and what is left of "
                f"them is in {self._layout.quarantine}",
                RuntimeWarning,
                stacklevel=2,
            )

    def sync(self) -> None:
        """Sync the shards that are left, their names and their lines."""
        for is_synced, line in self._lines():
            record = None if is_synced else _record(line)
            if record is not None and self._layout.owns_name(record.shard) and self._path(record.shard).exists():
                sync_shard(self._path(record.shard))
        sync(self._layout.root)
        for log in (self._layout.manifest, self._layout.failures):
            if log.exists():
                sync(log)


def _record(line: bytes) -> ShardRecord | None:
    """Return the record in a line, or None if it is damaged or says something else."""
    try:
        return ShardRecord.from_json(unseal(line) or {})
    except ValueError:
        return None
