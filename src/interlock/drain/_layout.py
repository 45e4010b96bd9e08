"""What things are called in a sink's folder.

::

    PATH/part-<run>-<number><suffix>   the shards: all that a reader of the dataset sees
    PATH/_interlock/run.json           what the dataset is
                    manifest.jsonl     one line per committed shard
                    failures.jsonl     one line per failure of a row
                    lock               held by the one live writer
                    open               held for a moment, by whoever opens, settles or rewrites
                    tmp/               shards being written; names end in .tmp
                    quarantine/        shards that nobody vouches for; names end in .quarantined
                    unsynced.json      there while shards are that were not synced: see `_unsynced`

That is rank 0. Rank 3 has the same for itself, but for `run.json` and `open`: `part-<run>-r00003-<number><suffix>`,
`manifest-r00003.jsonl`, `failures-r00003.jsonl`, `lock-r00003`, `tmp-r00003/`, `quarantine-r00003/`,
`unsynced-r00003.json`, and `run-r00003.json` with the schema of its rows. No two processes write to one file.

Readers of Parquet skip names that begin with an underscore, and no glob for ``*.parquet`` meets a temporary.

In a remote store the names are the same; `interlock.drain._remote` says what is different there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, final

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROL = "_interlock"
MOST_RANKS = 100_000
_NAME = re.compile(
    r"part-(?P<run>[0-9a-f]{8})-(?:r(?P<rank>[0-9]{5})-)?(?P<number>[0-9]{6,12})(?:-[0-9a-f]{8})?(?P<suffix>\.[a-z]+)?"
)
_OF_RANK = re.compile(r"(?:run|manifest|failures|lock|tmp|quarantine|unsynced)-r(?P<rank>[0-9]{5})(?:\.jsonl?)?")


class ShardName(NamedTuple):
    """What a shard's name tells."""

    run: str
    rank: int
    number: int
    suffix: str


def parse_name(name: str) -> ShardName | None:
    """Return what a shard's name tells, or None if it is not a shard's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return ShardName(match["run"], int(match["rank"] or 0), int(match["number"]), match["suffix"] or "")


def ranks_in(control: Iterable[str], visible: Iterable[str]) -> list[int]:
    """Return the ranks that have left something, and 0.

    Args:
        control: Names in our own folder.
        visible: Names that a reader of the dataset would read.
    """
    matches = (_OF_RANK.fullmatch(name) for name in control)
    found = {int(match["rank"]) for match in matches if match}
    return sorted({0} | found | {parsed.rank for parsed in map(parse_name, visible) if parsed})


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The names that one rank of a sink uses, relative to its folder, with `/`.

    Attributes:
        suffix: End of a shard's name; empty where a shard is a folder.
        rank: Whose names.
        writer: Eight hexadecimal digits in the names of new shards that tell one writer from the next; may be empty.
    """

    suffix: str
    rank: int = 0
    writer: str = ""

    def of(self, rank: int) -> Self:
        """Return the names of another rank."""
        return replace(self, rank=rank)

    @property
    def _tag(self) -> str:
        return f"-r{self.rank:05d}" if self.rank else ""

    @property
    def run_file(self) -> str:
        """What the dataset is."""
        return f"{CONTROL}/run.json"

    @property
    def schema_file(self) -> str:
        """The columns that this rank writes."""
        return f"{CONTROL}/run{self._tag}.json"

    @property
    def opening(self) -> str:
        """Held by whoever changes what belongs to no rank or to a dead one."""
        return f"{CONTROL}/open"

    @property
    def manifest(self) -> str:
        """The committed shards."""
        return f"{CONTROL}/manifest{self._tag}.jsonl"

    @property
    def failures(self) -> str:
        """The failures of rows."""
        return f"{CONTROL}/failures{self._tag}.jsonl"

    @property
    def lock(self) -> str:
        """Held by the writer."""
        return f"{CONTROL}/lock{self._tag}"

    @property
    def temporaries(self) -> str:
        """Folder of what is being written."""
        return f"{CONTROL}/{'tmp'}{self._tag}"

    @property
    def quarantine(self) -> str:
        """Folder of what nobody vouches for."""
        return f"{CONTROL}/quarantine{self._tag}"

    @property
    def unsynced(self) -> str:
        """Note that shards of this rank were not synced."""
        return f"{CONTROL}/unsynced{self._tag}.json"

    def shard_name(self, run: str, number: int) -> str:
        """Return the name of a shard."""
        writer = f"-{self.writer}" if self.writer else ""
        return f"part-{run[:8]}{self._tag}-{number:06d}{writer}{self.suffix}"

    def owns_name(self, name: str) -> bool:
        """Tell whether `name` is a shard's name in this layout; such a name never leads out of the folder."""
        parsed = parse_name(name)
        return parsed is not None and parsed.suffix == self.suffix

    def hidden(self, name: str) -> str:
        """Return what `name` is called before it is shown."""
        return f"{self.temporaries}/{name}.tmp"

    def isolated(self, name: str) -> str:
        """Return what `name` is called in quarantine."""
        return f"{self.quarantine}/{name}.quarantined"
