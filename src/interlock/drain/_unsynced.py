"""What `fsync="never"` leaves to the system: noted while it is written, looked at when the sink is opened again.

Rows of such a run survive the process, since the system has them, and may not survive the machine. So a note of the
rank says from which line of its manifest on that is so, and which boot of the machine has them. Whoever opens the sink
in another boot reads those shards: see `_powercut`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from interlock.drain._files import seal, unseal

if TYPE_CHECKING:
    from interlock.drain._storage import Storage

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@final
@dataclass(frozen=True, slots=True)
class UnsyncedNote:
    """The content of `unsynced.json`.

    Attributes:
        boot: Which boot of which machine wrote; empty if that is not known.
        since_bytes: Offset in the manifest before which everything is on the storage.
    """

    boot: str
    since_bytes: int

    @classmethod
    def read(cls, storage: Storage) -> UnsyncedNote | None:
        """Return the note of a rank, or None. One that is damaged vouches for nothing."""
        content = storage.read(storage.layout.unsynced)
        if content is None:
            return None
        value = unseal(content) or {}
        return cls(str(value.get("boot", "")), int(value.get("since_bytes", 0)))

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has run since, so that the system still has what it was given."""
        return bool(self.boot) and self.boot == _boot()


def _boot() -> str:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""


def note_unsynced(storage: Storage) -> None:
    """Note that a rank does not sync from here on. Its manifest is whole.

    Raises:
        OSError: The storage refused.
    """
    layout = storage.layout
    if not storage.has(layout.unsynced):
        since_bytes = 0
        if storage.has(layout.manifest):
            storage.sync_log(layout.manifest)
            since_bytes = max((end for end, _ in storage.lines(layout.manifest)), default=0)
        storage.replace(layout.unsynced, seal(asdict(UnsyncedNote(_boot(), since_bytes))))
