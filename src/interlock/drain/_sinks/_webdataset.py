"""Tar shards as WebDataset reads them: one member `KEY.OUTPUT.npy` for each row and output; the key is the id."""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock._core._protocols import ShardContent
from interlock._core._rows import RaggedRows
from interlock.drain._ragged import ragged_of
from interlock.drain._shardfile import ShardFile
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows

_MARK = "__interlock__"
"""Member at the end that says what there must be; WebDataset skips names of that form."""

_END = bytes(2 * tarfile.BLOCKSIZE)
_SUFFIX = ".npy"
_PLAIN_SIZE_BYTES = 8**11 - 1
"""Larger members have a header of more than one block."""
_BUFFER_BYTES = 1 << 20
_MOST_HEADS = 1 << 12
"""Shapes of rows whose headers are kept."""

_DAMAGES = (
    *(tarfile.TarError, KeyError, TypeError, ValueError, AttributeError, EOFError),
    *(OverflowError, RecursionError),  # numbers and nesting that nobody writes
)


@final
class WebDatasetSink:
    """One tar file per shard."""

    scheme = "webdataset"
    suffix = ".tar"
    in_python = True  # one thread at a time can make members
    dtypes: frozenset[str] = frozenset()
    ragged = True

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:
        """As in `SupportsLimits`."""
        _check_names(names)
        if ids.dtype.kind == "U":
            for one in ids.tolist():
                _check_key(one)

    def open_shard(self, path: Path, *, run: str) -> _TarShard:
        """As in `Sink`."""
        return _TarShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: reads every header, which must lead from one to the next and to the end."""
        content = _Content.read(path)
        return ShardContent(content.run, content.ids)

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`."""
        content = _Content.read(path)
        with path.open("rb") as file:
            try:
                return {
                    name: _rows(file, [places[at] for at in positions], ragged=name in content.ragged)
                    for name, places in content.places.items()
                }
            except (ValueError, IndexError, EOFError) as error:
                raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is no whole tar shard of ours", why=str(error) or type(error).__name__)


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name or name.startswith(".") or not name.isprintable() or not {"/", "\\"}.isdisjoint(name):
            raise UsageError(
                f"output {name!r} cannot be the extension of a member",
                hint="name outputs without slashes or a leading dot",
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise UsageError(
                f"outputs {other!r} and {name!r} differ only in case",
                why="readers of WebDataset do not tell extensions apart by case",
                hint="rename one of them",
            )


def _check_key(key: str) -> None:
    parts = key.split("/")
    doubt = ""
    if "" in parts or not key.isprintable():
        doubt = "a part of it is empty, or not printable"
    elif "\\" in key or not {".", ".."}.isdisjoint(parts):
        doubt = "it could lead outside of the folder that it is unpacked in"
    elif "." in parts[-1]:
        doubt = "a key ends at the first dot of its last part"
    elif parts[-1].startswith("__") and parts[-1].endswith("__"):
        doubt = "readers skip names of that form"
    if doubt:
        raise UsageError(
            f"id {key!r} cannot be the key of a sample",
            why=doubt,
            hint="use ids without dots and empty parts, as 'train/0001', or row numbers; or use another sink",
        )


@final
@dataclass(slots=True)
class _Content:
    """What a shard holds, and where."""

    run: str = ""
    ids: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    ragged: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path) -> _Content:
        """Read the headers of a shard.

        Raises:
            UsageError: It is damaged or not ours.
        """
        try:
            with path.open("rb") as file:
                return cls._read(file)
        except _DAMAGES as error:
            raise _damaged(path, error) from error

    @classmethod
    def _read(cls, file: IO[bytes]) -> _Content:
        content = cls()
        keys: list[str] = []
        told: Any = None
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined] # else it keeps each header
                if member.size < 0:  # it would lead back, again and again
                    raise ValueError(f"a member has {member.size} bytes")
                if member.name == _MARK:
                    told = json.loads(_read_at(file, member.offset_data, member.size))
                    continue
                key, name = _taken_apart(member.name)
                if not keys or keys[-1] != key:
                    keys.append(key)
                content.places.setdefault(name, []).append((member.offset_data, member.size))
            end = tar.offset
        if told is None:
            raise ValueError("it does not say what it holds")
        file.seek(0, io.SEEK_END)
        if file.tell() != end + len(_END) or _read_at(file, end, len(_END)) != _END:
            raise ValueError("it is cut short, or goes on behind its end")
        content.run = str(told["run"])
        content.ragged = frozenset(told.get("ragged", ()))
        content.ids = np.array(keys, np.str_) if told["ids"] == "str" else np.array(keys, np.int64)
        if told["rows"] != len(keys) or any(len(places) != len(keys) for places in content.places.values()):
            raise ValueError(f"it has {len(keys):,} keys, and should have {told['rows']:,}")
        return content


def _taken_apart(member: str) -> tuple[str, str]:
    folder, slash, last = member.rpartition("/")
    stem, _, extension = last.partition(".")
    return f"{folder}{slash}{stem}", extension.removesuffix(_SUFFIX)


def _read_at(file: IO[bytes], offset: int, size_bytes: int) -> bytes:
    file.seek(offset)
    content = file.read(size_bytes)
    if len(content) != size_bytes:
        raise EOFError("it is cut short")
    return content


def _rows(file: IO[bytes], places: Sequence[tuple[int, int]], *, ragged: bool) -> Rows:
    rows = [np.load(io.BytesIO(_read_at(file, *place)), allow_pickle=False) for place in places]
    return ragged_of(rows) if ragged else np.stack(rows)


@final
class _TarShard:
    """A file being written, member by member."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._file = io.BufferedWriter(ShardFile(path), _BUFFER_BYTES)
        self._kind = ""
        self._rows = 0
        self._ragged: list[str] = []

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """As in `ShardWriter`."""
        self._note(ids, columns)
        native = {name: _native(column) for name, column in columns.items()}
        for row, one in enumerate(ids.tolist()):
            for name, column in native.items():
                value = column[row]
                head = _head(value.dtype, value.shape)
                self._member(f"{one}.{name}{_SUFFIX}", head, value.reshape(-1).view(np.uint8))
        self._rows += len(ids)

    def _note(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """Refuse what no member can be called."""
        _check_names(list(columns))
        self._ragged = [name for name, column in columns.items() if isinstance(column, RaggedRows)]
        self._kind = "str" if ids.dtype.kind == "U" else "int"
        if self._kind == "str":
            for one in ids.tolist():
                _check_key(one)

    def close(self) -> None:
        """As in `ShardWriter`."""
        told = {"run": self._run, "rows": self._rows, "ids": self._kind, "ragged": self._ragged}
        self._member(_MARK, json.dumps(told).encode(), np.empty(0, np.uint8))
        self._file.write(_END)
        self._file.close()

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        with suppress(OSError):
            self._file.close()

    def _member(self, name: str, head: bytes, content: npt.NDArray[np.uint8]) -> None:
        size_bytes = len(head) + content.size
        self._file.write(_header(name, size_bytes))
        self._file.write(head)
        self._file.write(content.data)
        self._file.write(bytes(-size_bytes % tarfile.BLOCKSIZE))


_NAME_BYTES = 100
_CHECKSUM = slice(148, 156)


@cache
def _nameless(size_bytes: int) -> tuple[bytes, int]:
    """Return what comes behind the name in the header of a member, and the sum of that with a blank checksum."""
    info = tarfile.TarInfo("x")
    info.size = size_bytes
    header = info.tobuf(tarfile.PAX_FORMAT)
    blank = header[_NAME_BYTES : _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    return blank, sum(blank)


def _header(name: str, size_bytes: int) -> bytes:
    """Return the header of a member, as tarfile makes it; four times as fast for the names of most."""
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES or not name.isascii() or size_bytes > _PLAIN_SIZE_BYTES:
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        return info.tobuf(tarfile.PAX_FORMAT)
    blank, total = _nameless(size_bytes)
    checksum = b"%06o\0 " % (total + sum(encoded))
    before = _CHECKSUM.start - _NAME_BYTES
    return encoded.ljust(_NAME_BYTES, b"\0") + blank[:before] + checksum + blank[before + len(checksum) :]


def _native(column: Rows) -> Rows:
    """Return rows of this machine's byte order, each of which is contiguous."""
    if isinstance(column, RaggedRows):
        return RaggedRows(np.ascontiguousarray(column.values, column.dtype.newbyteorder("=")), column.offsets)
    return np.ascontiguousarray(column, column.dtype.newbyteorder("="))


@lru_cache(_MOST_HEADS)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what comes before the bytes of one row in a `.npy` file."""
    head = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, header)
    return head.getvalue()
