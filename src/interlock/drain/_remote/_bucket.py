"""A folder of a remote store as a `Storage`."""

from __future__ import annotations

import copy
import errno
import os
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from interlock.drain._files import files_of, remove
from interlock.drain._layout import CONTROL, Layout, parse_name, ranks_in
from interlock.drain._remote._client import Client, check_url
from interlock.drain._remote._entries import Entries, lines_in
from interlock.drain._remote._leases import Leases
from interlock.drain._remote._spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from interlock._core._protocols import Sink
    from interlock.drain._remote._leases import Lease

_MOST_READINGS = 3
"""How often a log is read of which entries go meanwhile, since somebody folds them."""


@final
class Bucket:
    """As in `Storage`. What others did is seen when it is asked for again: see `refresh`.

    Args:
        url: The folder.
        sink: The format.
        rank: As which rank.
        timeout_s: Bound on each call.

    Attributes:
        layout: As in `Storage`.

    Raises:
        UsageError: The url cannot be a sink, or what it needs is not installed.
    """

    is_durable: ClassVar[bool] = True

    def __init__(self, url: str, sink: Sink, rank: int, timeout_s: float) -> None:
        check_url(url)
        self._client = Client(url, timeout_s)
        self._leases = Leases(self._client)
        self._index = str(getattr(sink, "index", ""))
        self._seen = _Seen(self._client)
        self._spool = Spool()
        self.layout = Layout(sink.suffix, rank, self._leases.token)

    @property
    def place(self) -> str:
        """As in `Storage`."""
        return self._client.url

    def of(self, rank: int) -> Self:
        """As in `Storage`."""
        other = copy.copy(self)
        other.layout = self.layout.of(rank)
        return other

    def where(self, name: str) -> str:
        """As in `Storage`."""
        return f"{self._client.url}/{name}"

    # ---------------------------------------------------------------- what is there

    def refresh(self) -> None:
        """As in `Storage`."""
        self._seen.forget()

    def is_file(self) -> bool:
        """As in `Storage`."""
        return "" in self._seen.files()

    def looks_ours(self) -> bool:
        """As in `Storage`."""
        self.refresh()
        for name in self._seen.files():
            folder, _, rest = name.partition("/")
            kind = rest.partition("/")[0]
            if folder != CONTROL or not kind.startswith(("tmp", "quarantine", "lock", "open", "manifest")):
                return False
            if kind.startswith("manifest") and any(True for _ in self.lines(f"{CONTROL}/{kind}")):
                return False
        return True

    def make(self) -> None:
        """As in `Storage`: there are no folders to make."""

    def has(self, name: str) -> bool:
        """As in `Storage`."""
        return any(one == name or one.startswith(f"{name}/") for one in self._seen.files())

    def visible(self) -> list[str]:
        """As in `Storage`: no folder that lacks the file that makes it readable."""
        suffix = self.layout.suffix
        shards = [name for name in self._seen.shards() if not name.startswith(("_", ".")) and not self._is_cut(name)]
        if suffix:
            return sorted(name for name in shards if name.endswith(suffix))
        return sorted(name for name in shards if name not in self._seen.parts_of(name))

    def _is_cut(self, name: str) -> bool:
        """Tell whether a folder lacks the file that comes last."""
        parts = self._seen.parts_of(name)
        return bool(self._index) and name not in parts and f"{name}/{self._index}" not in parts

    def ranks(self) -> list[int]:
        """As in `Storage`."""
        prefix = f"{CONTROL}/"
        ours = (name.removeprefix(prefix) for name in self._seen.files() if name.startswith(prefix))
        return ranks_in({name.partition("/")[0] for name in ours}, self._seen.shards())

    # ---------------------------------------------------------------- small files, logs and locks

    def read(self, name: str) -> bytes | None:
        """As in `Storage`."""
        try:
            return self._client.read(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def replace(self, name: str, content: bytes) -> None:
        """As in `Storage`."""
        self._client.write(name, content)
        self._seen.add(name, len(content))

    def remove(self, *names: str) -> None:
        """As in `Storage`."""
        for name in names:
            self._leases.release(name)
            self._remove([one for one in self._seen.files() if one == name or one.startswith(f"{name}/")])

    def forget(self) -> None:
        """As in `Storage`."""
        self.refresh()
        self.remove(self.layout.manifest, self.layout.failures, self.layout.temporaries, self.layout.lock)

    def lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """As in `Storage`."""
        return lines_in(content for _, content in self._entries_of(name))

    def _entries_of(self, name: str) -> list[tuple[str, bytes]]:
        for _ in range(_MOST_READINGS - 1):
            try:
                return self._log(name).contents()
            except FileNotFoundError:
                continue
        return self._log(name).contents()

    def log(self, name: str) -> Entries:
        """As in `Storage`: entries are folded first if there are many."""
        log = self._log(name)
        log.tidy()
        return log

    def _log(self, name: str) -> Entries:
        locks = (self.layout.lock, self.layout.opening)  # who holds the second mends what dead ranks left
        return Entries(self._client, self._leases, name, locks if name == self.layout.manifest else ())

    def sync_log(self, name: str) -> None:
        """As in `Storage`: an object is there when it is written."""

    def cut_log(self, name: str, whole_bytes: int) -> None:
        """As in `Storage`: removes objects that are not whole, which a store leaves that shows them in part."""
        end = 0
        torn = []
        for one, content in self._entries_of(name):
            end += max((stop for stop, _ in lines_in([content])), default=0)
            if end > whole_bytes:
                torn.append(one)
        self._remove(torn)

    def replace_log(self, name: str, lines: Iterable[bytes]) -> None:
        """As in `Storage`."""
        self._log(name).replace(lines)

    def lock(self, name: str, text: str, *, wait_s: float = 0.0) -> Lease:
        """As in `Storage`; whoever held the lock and did not let go of it commits nothing more."""
        fence = self._log(self.layout.manifest).mark_opened if name == self.layout.lock else _nothing
        lease = self._leases.take(name, text, wait_s, fence)
        self.refresh()
        return lease

    def is_locked(self, name: str) -> bool:
        """As in `Storage`."""
        return self._leases.is_held(name)

    # ---------------------------------------------------------------- shards

    def temporary(self, name: str) -> Path:
        """As in `Storage`."""
        return self._spool.path(name)

    def clear(self) -> None:
        """As in `Storage`: also folders of which a killed writer uploaded a part."""
        self.remove(self.layout.temporaries)
        for name in self._seen.shards():
            parsed = parse_name(name)
            if parsed and parsed.rank == self.layout.rank and self.layout.owns_name(name) and self._is_cut(name):
                self._remove_parts(name)

    def bring(self, name: str, *, hidden: bool = False) -> None:
        """As in `Storage`: uploads it. Of a folder, the file that makes it readable comes last."""
        path, target = self.temporary(name), self.layout.hidden(name) if hidden else name
        if not path.is_dir():
            self._upload(path, target)
            return
        files = {f"{target}/{file.relative_to(path).as_posix()}": file for file in files_of(path)}
        last = f"{target}/{self._index}"
        self._client.each(lambda one: self._upload(files[one], one), [one for one in files if one != last])
        if last in files:
            self._upload(files[last], last)

    def _upload(self, path: Path, name: str) -> None:
        self._client.upload(path, name)
        self._seen.add(name, path.stat().st_size)

    def show(self, name: str) -> None:
        """As in `Storage`: a hidden shard is copied in the store."""
        hidden = self.layout.hidden(name)
        if self._seen.size_of(hidden) is not None:
            self._copy(hidden, name)
            self._remove_parts(hidden)
        remove(self.temporary(name))

    def sync_shard(self, name: str) -> None:
        """As in `Storage`: it is."""

    def sync_names(self, *shown: str) -> None:
        """As in `Storage`: they are."""

    def size_of(self, name: str, *, hidden: bool = False) -> int | None:
        """As in `Storage`; a folder that lacks its last file is not there."""
        source = self.layout.hidden(name) if hidden else name
        return None if self._is_cut(source) else self._seen.size_of(source)

    def fetch(self, name: str, *, hidden: bool = False) -> Path:
        """As in `Storage`: downloads it."""
        source = self.layout.hidden(name) if hidden else name
        parts = self._seen.parts_of(source)
        if not parts:
            self.refresh()  # another rank may have made it
            parts = self._seen.parts_of(source)
        if not parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(source))

        def download(path: Path) -> None:
            targets = {part: path / _inside(part, source) if part != source else path for part in parts}
            self._client.each(lambda part: self._client.download(part, targets[part]), parts)

        return self._spool.fetched(name, download)

    def remove_shard(self, name: str) -> None:
        """As in `Storage`: of a folder, the file that makes it readable goes first."""
        self._remove_parts(name)
        self._spool.forget(name)

    def isolate(self, name: str) -> str:
        """As in `Storage`: it is copied in the store."""
        target = self.layout.isolated(name)
        self._copy(name, target)
        self.remove_shard(name)
        return self.where(target)

    def _copy(self, source: str, target: str) -> None:
        parts = self._seen.parts_of(source)
        names = {part: target + part.removeprefix(source) for part in parts}
        last = f"{source}/{self._index}"

        def one(part: str) -> None:
            self._client.copy(part, names[part])
            self._seen.add(names[part], parts[part])

        self._client.each(one, [part for part in parts if part != last])
        if last in parts:
            one(last)

    def _remove_parts(self, name: str) -> None:
        parts = self._seen.parts_of(name)
        first = f"{name}/{self._index}"
        self._remove([first] if first in parts else [])
        self._remove([part for part in parts if part != first])

    def _remove(self, names: list[str]) -> None:
        self._client.remove(names)
        self._seen.discard(names)


@final
class _Seen:
    """What is in the folder: listed once, and kept up with what we do ourselves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._groups: dict[str, dict[str, int]] | None = None

    def forget(self) -> None:
        """List again when somebody asks."""
        self._groups = None

    def _known(self) -> dict[str, dict[str, int]]:
        groups = self._groups
        if groups is None:
            groups = {}
            for name, size in self._client.find().items():
                groups.setdefault(_group(name), {})[name] = size
            self._groups = groups
        return groups

    def files(self) -> dict[str, int]:
        """Return all files, by name."""
        return {name: size for group in self._known().values() for name, size in group.items()}

    def shards(self) -> list[str]:
        """Return the names at the top."""
        return [group for group in self._known() if "/" not in group]

    def parts_of(self, name: str) -> dict[str, int]:
        """Return the files that a shard consists of."""
        group = self._known().get(_group(name), {})
        return {one: size for one, size in group.items() if one == name or one.startswith(f"{name}/")}

    def size_of(self, name: str) -> int | None:
        """Return the bytes of a shard, or None."""
        parts = self.parts_of(name)
        return sum(parts.values()) if parts else None

    def add(self, name: str, size: int) -> None:
        """Say that a file was made."""
        groups = self._groups  # another thread may forget it
        if groups is not None:
            groups.setdefault(_group(name), {})[name] = size

    def discard(self, names: Iterable[str]) -> None:
        """Say that files were removed."""
        groups = self._groups or {}
        for name in names:
            group = groups.get(_group(name), {})
            group.pop(name, None)
            if not group:
                groups.pop(_group(name), None)


def _group(name: str) -> str:
    """Return what a file belongs to: a name at the top, or one in our own folder."""
    parts = name.split("/", 2)
    return "/".join(parts[:2]) if parts[0] == CONTROL else parts[0]


def _inside(part: str, folder: str) -> str:
    """Return the path of a file in a folder; one that leads elsewhere is refused."""
    relative = part.removeprefix(f"{folder}/")
    if "\\" in relative or any(step in {"", ".", ".."} for step in relative.split("/")):
        raise OSError(errno.EINVAL, "its name leads out of its shard", part)
    return relative


def _nothing(*_: Any) -> None:
    """Do nothing."""
