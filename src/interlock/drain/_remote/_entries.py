"""Logs of a remote store: a prefix in which each commit is an object, numbered from 1 on.

An object is created only if there is none of its number. A drain that takes over a lease writes an entry of its own
into the manifest of that rank: so one that lost the lease and does not know yet finds its next number taken, and
commits nothing, whatever the clocks say. Where a store cannot refuse to write an object twice, the token of the lease
is in the name: then nothing is written over, and the lease alone decides.

Many entries are *folded*: one more is written that begins with a mark and holds them all, then they are removed. An
entry with that mark makes those before it count no more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

from interlock.drain._files import seal, unseal
from interlock.drain._remote._leases import lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from interlock.drain._remote._client import Client
    from interlock.drain._remote._leases import Leases

MOST_ENTRIES = 256
_NAME = re.compile(r"(?P<number>[0-9]{8})(?:-[0-9a-f]{8})?\.jsonl")
_FOLD = seal({"fold": 1})
_MARKS = (b'{"fold":', b'{"opened":')


@final
class Entries:
    """One log.

    Args:
        client: The store.
        leases: Those of the drain.
        name: The prefix.
        locks: Leases of which one must be held by who writes; empty: entries of several writers do no harm.
    """

    def __init__(self, client: Client, leases: Leases, name: str, locks: tuple[str, ...]) -> None:
        self._client = client
        self._leases = leases
        self._name = name
        self._locks = locks
        self._waiting: list[bytes] = []
        self._next: int | None = None

    def append(self, lines: bytes) -> None:
        """As in `Log`."""
        self._waiting.append(lines)

    def sync(self) -> None:
        """As in `Log`: writes one object.

        Raises:
            SinkConflictError: Somebody else took over.
        """
        content = b"".join(self._waiting)
        self._waiting = []
        if content:
            self._write(content)

    def close(self) -> None:
        """As in `Log`."""
        self.sync()

    def mark_opened(self) -> None:
        """Take the next number, so that a writer that does not know of us cannot."""
        self._write(seal({"opened": self._leases.token}))

    def _write(self, content: bytes) -> None:
        if self._next is None:
            self._next = 1 + max(map(_number, self.names()), default=0)
        while not self._create(content):
            self._next += 1
        self._next += 1

    def _create(self, content: bytes) -> bool:
        if self._locks:
            self._leases.check(self._locks)
        if not self._leases.is_exclusive:
            self._client.write(f"{self._name}/{self._next:08d}-{self._leases.token}.jsonl", content)
            return True
        is_ours = self._client.create(f"{self._name}/{self._next:08d}.jsonl", content)
        if not is_ours and self._locks:
            raise lost(f"{self._client.url}/{self._locks[0]}")
        return is_ours

    def names(self) -> list[str]:
        """Return the objects, in order."""
        prefix = f"{self._name}/"
        found = (name.removeprefix(prefix) for name in self._client.find(self._name))
        return sorted(f"{prefix}{name}" for name in found if _NAME.fullmatch(name))

    def contents(self) -> list[tuple[str, bytes]]:
        """Return the objects that count, with what they hold, in order.

        Raises:
            FileNotFoundError: Somebody folded them meanwhile: look again.
        """
        names = self.names()
        contents = self._client.read_many(names)
        first = max((at for at, content in enumerate(contents) if content.startswith(_FOLD)), default=0)
        return list(zip(names, contents, strict=True))[first:]

    def tidy(self) -> None:
        """Fold the entries if there are many."""
        if len(self.names()) > MOST_ENTRIES:
            self.replace(line for _, content in self.contents() for _, line in lines_in([content]))

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write one entry in place of all."""
        content = _FOLD + b"".join(lines)
        before = self.names()
        self._next = 1 + max(map(_number, before), default=0)
        self._write(content)
        self._client.remove(before)


def _number(name: str) -> int:
    match = _NAME.fullmatch(name.rpartition("/")[2])
    return int(match["number"]) if match else 0


def lines_in(contents: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each line, save our own marks, with the offset of its end in all of them together."""
    end = 0
    for content in contents:
        for line in content.splitlines(keepends=True):
            if not line.startswith(_MARKS) or unseal(line) is None:
                end += len(line)
                yield end, line
