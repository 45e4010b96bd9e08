"""Samples of WebDataset tar shards, by index."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, final

from interlock.errors import InterlockError, SampleError, SourceError
from interlock.feed.sources._decoders import decode_by_extension, makes_numbers
from interlock.feed.sources._storage import (
    Storage,
    as_locations,
    is_folder,
    is_url,
    join,
    matching,
    remote_files_below,
    unsigned,
)
from interlock.feed.sources._tar_index import load_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from interlock.feed.sources._tar_index import ShardIndex

_BRACE = re.compile(r"\{([^{}]*)\}")
_COUNTING = re.compile(r"(\d+)\.\.(\d+)")
_INDEXING_THREADS = 8
_GAP_BYTES = 4096
"""Members of a sample that lie this close are read at once: a header of 512 bytes and padding lie between them."""


@final
class WebDatasetSource:
    """Samples of tar shards: the members that share a key, as a dict by extension.

    One extension makes a sample that is its value; several make a dict. Ids are `shard/key`, with the part of the
    shards' paths that they have in common left out. A shard's headers are read once; where its samples are is then
    kept in an index file (see `docs/sources.md`), and each sample costs one read, whatever the order.

    Args:
        shards: A path, url or pattern (`train-{000..146}.tar`, `*.tar`), a folder, or a list of these.
        extensions: Which make a sample, in this order. Default: those of the first sample that make numbers.
        decode: Makes a sample from a dict of extension to bytes. Default: by extension; nothing is ever unpickled.
        image_size: (height, width) that images are resized to.
        index: `beside` the shard where that can be written; a folder; or None to keep none.

    Raises:
        SourceError: There is no shard or no sample; a shard is damaged or compressed, or names in it are not sound.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        extensions: Sequence[str] | None = None,
        decode: Callable[[dict[str, bytes]], Any] | None = None,
        image_size: tuple[int, int] | None = None,
        index: str | os.PathLike[str] | None = "beside",
    ) -> None:
        self._storage = Storage()
        self._shards = find_shards(shards)
        folder = None if index in {"beside", None} else os.fspath(index or "")
        beside = index == "beside"
        with ThreadPoolExecutor(min(_INDEXING_THREADS, len(self._shards))) as pool:
            indices = list(pool.map(lambda one: load_index(self._storage, one, folder, beside=beside), self._shards))
        self._shards = [shard for shard, one in zip(self._shards, indices, strict=True) if one.keys]
        self._indices: list[ShardIndex] = [one for one in indices if one.keys]
        if not self._shards:
            raise SourceError(f"{shards} holds no sample", hint="members are called KEY.EXTENSION")
        self._starts = list(itertools.accumulate((len(one.keys) for one in self._indices), initial=0))
        self._names = short_names(self._shards)
        self._decode = decode
        self._image_size = image_size
        self._extensions = None if extensions is None and decode else self._chosen(extensions)

    def _chosen(self, extensions: Sequence[str] | None) -> list[str]:
        present = self._indices[0].members(0)
        if extensions is not None:
            chosen = [one.lower().removeprefix(".") for one in extensions]
            unknown = [one for one in chosen if not any(one in index.extensions for index in self._indices)]
            if unknown or not chosen:
                why = f"the first sample has {', '.join(present)}"
                raise SourceError(f"no sample has extension {(unknown or [''])[0]!r}", why=why)
            return chosen
        chosen = [one for one in present if makes_numbers(one)]
        if not chosen:
            raise SourceError(
                f"the first sample of {self._shards[0]} holds no numbers",
                why=f"it has {', '.join(present)}",
                hint="give extensions= or decode=",
            )
        return chosen

    def __repr__(self) -> str:
        return f"WebDatasetSource(shards={len(self._shards)}, samples={len(self)}, extensions={self._extensions})"

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        """Read and decode one sample.

        Raises:
            IndexError: There is no such sample.
            SampleError: It cannot be read or decoded, or lacks an extension.
        """
        shard, sample = self._locate(index)
        members = self._indices[shard].members(sample)
        if self._extensions is not None:
            for one in self._extensions:
                if one not in members:
                    raise self._failure(index, "has no member " + repr(one), f"it has {', '.join(members)}")
            members = {one: members[one] for one in self._extensions}
        content = self._read(index, self._shards[shard], members)
        if self._decode is not None:
            return self._decoded_by_user(index, content)
        values = {one: self._decoded(index, one, data, members[one][0]) for one, data in content.items()}
        return values if len(values) > 1 else next(iter(values.values()))

    def _read(self, index: int, shard: str, members: dict[str, tuple[int, int]]) -> dict[str, bytes]:
        start = min(offset for offset, _ in members.values())
        stop = max(offset + size for offset, size in members.values())
        try:
            if stop - start > sum(size + _GAP_BYTES for _, size in members.values()):
                return {one: self._storage.read(shard, *place) for one, place in members.items()}
            data = self._storage.read(shard, start, stop - start)
        except OSError as error:
            why = f"byte {start}: {error.strerror or error}"
            raise self._failure(index, "cannot be read", why, "did the shard change?") from error
        return {one: data[offset - start : offset - start + size] for one, (offset, size) in members.items()}

    def _decoded(self, index: int, extension: str, data: bytes, offset: int) -> Any:
        try:
            return decode_by_extension(extension, data, self._image_size)
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise self._failure(index, f"cannot be decoded: member {extension!r} at byte {offset}", why) from error

    def _decoded_by_user(self, index: int, content: dict[str, bytes]) -> Any:
        try:
            return self._decode(content) if self._decode else content
        except InterlockError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise self._failure(index, "cannot be decoded by the given function", why) from error

    def _failure(self, index: int, what: str, why: str, hint: str = "write the shard again, or skip it") -> SampleError:
        return SampleError(f"sample {self.id_of(index)!r} {what}", index=index, why=why, hint=hint)

    def id_of(self, index: int) -> str:
        """Return `shard/key`."""
        shard, sample = self._locate(index)
        return f"{self._names[shard]}/{self._indices[shard].keys[sample]}"

    def chunk_starts(self) -> list[int]:
        """Return the index of the first sample of each shard."""
        return self._starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        """Samples, extensions, and a digest of shard names, keys and sizes; content is not read."""
        digest = hashlib.sha256()
        for name, one in zip(self._names, self._indices, strict=True):
            digest.update("\0".join([name, *one.keys, *one.extensions]).encode())
            digest.update(one.size.tobytes() + one.extension.tobytes())
        return {
            "kind": "webdataset",
            "rows": len(self),
            "extensions": self._extensions,
            "image_size": None if self._image_size is None else list(self._image_size),
            "content": digest.hexdigest(),
        }

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect.bisect_right(self._starts, index) - 1
        return shard, index - self._starts[shard]


def find_shards(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the shards that paths, urls, patterns and folders stand for, in that order.

    Raises:
        SourceError: One stands for none, or a shard is there twice.
    """
    found = [shard for one in as_locations(shards) for shard in _find(one)]
    if not found:
        raise SourceError("no shards are given", why="the list is empty")
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise SourceError(f"shard {twice} is given twice", hint="its samples would have the same ids")
    return found


def _find(pattern: str) -> list[str]:
    if not is_url(pattern) and os.path.isfile(pattern):  # noqa: PTH113 - a name may hold braces and brackets
        return [pattern]
    if is_folder(pattern):
        names = remote_files_below(pattern) if is_url(pattern) else sorted(os.listdir(pattern))  # noqa: PTH208
        found = [join(pattern, name) for name in names if name.endswith(".tar")]
    else:
        wild = r"[*\[]" if pattern.startswith(("http://", "https://")) else r"[*?\[]"  # there ? begins a query
        plain = list(expand_braces(pattern))
        found = [match for one in plain for match in (matching(one) if re.search(wild, one) else [one])]
    if not found:
        raise SourceError(f"there is no shard {pattern}", hint="give .tar files, as train-{000..146}.tar or *.tar")
    return found


def expand_braces(pattern: str) -> Iterator[str]:
    """Give what a pattern with `{000..012}` and `{a,b}` stands for, leftmost changing slowest."""
    brace = _BRACE.search(pattern)
    if brace is None:
        yield pattern
        return
    counting = _COUNTING.fullmatch(brace[1])
    if counting:
        first, last = int(counting[1]), int(counting[2])
        width = len(counting[1])
        choices = [f"{number:0{width}}" for number in range(first, last + 1)]
    else:
        choices = brace[1].split(",")
    for choice in choices:
        yield from expand_braces(pattern[: brace.start()] + choice + pattern[brace.end() :])


def short_names(shards: Sequence[str]) -> list[str]:
    """Return the shards' paths without the folders that all have in common."""
    parts = [unsigned(shard).split("/") for shard in shards]
    common = 0
    while all(len(one) > common + 1 and one[common] == parts[0][common] for one in parts):
        common += 1
    return ["/".join(one[common:]) for one in parts]
