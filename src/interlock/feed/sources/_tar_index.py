"""Where the samples of a tar shard are: built in one pass, kept in a file beside it."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.errors import SourceError
from interlock.feed.sources._storage import is_url, unsigned

if TYPE_CHECKING:
    import numpy.typing as npt

    from interlock.feed.sources._storage import Stamp, Storage

_FORMAT = "interlock-tar-index"
_VERSION = 1
_BLOCK_BYTES = 512
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


@final
@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The samples of one shard: members that share a key, in the order in which the keys first come.

    Attributes:
        keys: One per sample: the member's name up to the first dot of its last part.
        extensions: All that occur: the rest of the name, lower case.
        first: Where each sample's members begin; one more at the end.
        extension: Of each member: its place in `extensions`.
        offset: Of each member: where its bytes begin in the shard.
        size: Of each member, in bytes.
    """

    keys: list[str]
    extensions: list[str]
    first: npt.NDArray[np.int64]
    extension: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    def members(self, sample: int) -> dict[str, tuple[int, int]]:
        """Return (offset, size) of each member of a sample, by extension."""
        places = range(int(self.first[sample]), int(self.first[sample + 1]))
        return {self.extensions[self.extension[at]]: (int(self.offset[at]), int(self.size[at])) for at in places}


def load_index(storage: Storage, shard: str, folder: str | None, *, beside: bool) -> ShardIndex:
    """Return the index of a shard: the kept one if it is of the shard as it is now, else a new one, which is kept.

    Args:
        storage: Reads the shard.
        shard: Its location.
        folder: Where indices are kept.
        beside: Whether to keep it beside a local shard; not being able to is no error then.

    Raises:
        SourceError: The shard cannot be read, or is no tar file, or is damaged; or `folder` cannot be written.
    """
    try:
        stamp = storage.stamp(shard)
    except OSError as error:
        raise SourceError(f"cannot read {shard}", why=error.strerror or str(error), hint="check the path") from error
    place = _place(shard, folder, beside=beside)
    kept = None if place is None else _read(place, stamp)
    if kept is not None:
        return kept
    index = build_index(storage, shard, stamp)
    if place is not None:
        try:
            _write(place, shard, stamp, index)
        except OSError as error:
            if folder is not None:
                raise SourceError(
                    f"cannot write the index {place}", why=error.strerror or str(error), hint="give another index="
                ) from error
    return index


def _place(shard: str, folder: str | None, *, beside: bool) -> Path | None:
    if folder is not None:
        name = unsigned(shard)
        mark = hashlib.sha256(name.encode()).hexdigest()[:12]
        return Path(folder, f"{name.rpartition('/')[2]}.{mark}.index.json")
    return Path(f"{shard}.index.json") if beside and not is_url(shard) else None


def build_index(storage: Storage, shard: str, stamp: Stamp) -> ShardIndex:
    """Read the headers of a shard once.

    Raises:
        SourceError: It is no tar file, is damaged or cut short, or a name in it is twice there or leads outside.
    """
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    reached = 0
    try:
        with storage.open(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isreg():
                    _add(samples, shard, member, stamp)
                reached = member.offset_data + member.size
            end = tar.offset
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise _unreadable(storage, shard, f"{error}, after byte {reached}") from error
    _check_end(storage, shard, end, stamp)
    return _packed(samples)


def _unreadable(storage: Storage, shard: str, why: str) -> SourceError:
    try:
        kind = _COMPRESSED.get(storage.read(shard, 0, 2))
    except OSError:
        kind = None
    if kind is not None:
        return SourceError(
            f"{shard} is compressed", why=f"{kind} has no random access", hint="unpack it: images do not shrink anyway"
        )
    return SourceError(f"{shard} cannot be read as tar", why=why, hint="copy or write it again")


def _add(samples: dict[str, dict[str, tuple[int, int]]], shard: str, member: tarfile.TarInfo, stamp: Stamp) -> None:
    name = member.name.removeprefix("./")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name:
        hint = "write the shard again with plain relative names"
        raise SourceError(f"a name in {shard} leads outside", why=f"{member.name!r}, byte {member.offset}", hint=hint)
    stem, dot, extension = parts[-1].partition(".")
    if not stem or not dot or (stem.startswith("__") and stem.endswith("__")):
        return  # as WebDataset does: hidden files, files without extension, and marks such as __key__
    if member.issparse() or member.offset_data + member.size > stamp.size_bytes:
        why = f"{member.name!r} at byte {member.offset_data} " + (
            "is a sparse file" if member.issparse() else f"should end at byte {member.offset_data + member.size}"
        )
        raise SourceError(f"{shard} is cut short or no plain tar", why=why, hint="copy or write it again")
    key = "/".join([*parts[:-1], stem])
    members = samples.setdefault(key, {})
    extension = extension.lower()
    if extension in members:
        why = f"their content is at bytes {members[extension][0]} and {member.offset_data}"
        raise SourceError(f"{shard} has two members {member.name!r}", why=why, hint="give each sample a key of its own")
    members[extension] = (member.offset_data, member.size)


def _check_end(storage: Storage, shard: str, end: int, stamp: Stamp) -> None:
    """Refuse a shard that does not end as tar files do: `tarfile` takes a damaged header for the end."""
    if end + _BLOCK_BYTES > stamp.size_bytes:
        raise SourceError(
            f"{shard} is cut short", why=f"no end mark at byte {end}, where it ends", hint="copy or write it again"
        )
    if any(storage.read(shard, end, _BLOCK_BYTES)):
        raise SourceError(f"{shard} is damaged", why=f"no tar header at byte {end}", hint="copy or write it again")


def _packed(samples: dict[str, dict[str, tuple[int, int]]]) -> ShardIndex:
    extensions = sorted({extension for members in samples.values() for extension in members})
    number = {extension: place for place, extension in enumerate(extensions)}
    flat = [(number[name], *where) for members in samples.values() for name, where in members.items()]
    table = np.array(flat, np.int64).reshape(-1, 3)
    first = np.cumsum([0, *(len(members) for members in samples.values())], dtype=np.int64)
    return ShardIndex(list(samples), extensions, first, *(np.ascontiguousarray(table[:, at]) for at in range(3)))


def _write(place: Path, shard: str, stamp: Stamp, index: ShardIndex) -> None:
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "shard": unsigned(shard).rpartition("/")[2],
        "size_bytes": stamp.size_bytes,
        "modified": stamp.version,
        "keys": index.keys,
        "extensions": index.extensions,
        **{name: getattr(index, name).tolist() for name in ("first", "extension", "offset", "size")},
    }
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(record, separators=(",", ":")), encoding="utf-8")
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def _read(place: Path, stamp: Stamp) -> ShardIndex | None:
    """Return a kept index; None if there is none, it is of another state of the shard, or it is damaged."""
    try:
        record: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        same = (record["format"], record["version"], record["size_bytes"], record["modified"])
        if same != (_FORMAT, _VERSION, stamp.size_bytes, stamp.version):
            return None
        arrays = [np.array(record[name], np.int64) for name in ("first", "extension", "offset", "size")]
        index = ShardIndex([str(key) for key in record["keys"]], list(record["extensions"]), *arrays)
        return index if _is_sound(index, stamp) else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def _is_sound(index: ShardIndex, stamp: Stamp) -> bool:
    members = len(index.offset)
    return bool(
        len(index.first) == len(index.keys) + 1
        and index.first[0] == 0
        and index.first[-1] == members == len(index.extension) == len(index.size)
        and (np.diff(index.first) > 0).all()
        and ((index.extension >= 0) & (index.extension < len(index.extensions))).all()
        and ((index.offset >= 0) & (index.size >= 0) & (index.offset + index.size <= stamp.size_bytes)).all()
    )
