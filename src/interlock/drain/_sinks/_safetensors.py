"""Safetensors files: tensor `id` and one per output. Written and checked here, bytes as they are: nothing is cast.

A ragged output is two tensors: `NAME.values` and `NAME.offsets`.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock._core._protocols import ShardContent
from interlock.drain._schema import ID_COLUMN, NARROW
from interlock.drain._shardfile import ShardFile
from interlock.drain._sinks._flat import Flattened, read_columns
from interlock.drain._times import writing
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from interlock._core._rows import Rows

_CODES = dict(
    zip(
        (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "bfloat16"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        ),
        (
            *("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"),
            *("F16", "F32", "F64", "BF16"),
            *("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"),
        ),
        strict=True,
    )
)
"""NumPy's name of a dtype to the format's."""

_NAMES = {code: name for name, code in _CODES.items()}
_OFFSETS = f"{ID_COLUMN}.offsets"
_METADATA = "__metadata__"
_TAKEN = {
    _METADATA: "the format keeps it for itself",
    _OFFSETS: "the tensor of that name says where ids that are strings begin",
}
_RUN_KEY = "interlock.run"
_RAGGED_KEY = "interlock.ragged"
"""Names of the ragged outputs, in JSON: the format's metadata are strings."""

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 100_000_000
"""As in the library: more is refused before it is read."""

_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


@final
class SafetensorsSink:
    """One file per shard. Ids that are strings are two tensors: their UTF-8 bytes, and where each begins."""

    scheme = "safetensors"
    suffix = ".safetensors"
    dtypes = NARROW
    ragged = True

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:  # noqa: ARG002 - it holds any id
        """As in `SupportsLimits`."""
        for name in names:
            if name in _TAKEN:
                raise UsageError(f"an output is called {name!r}", why=_TAKEN[name], hint="rename it")

    def open_shard(self, path: Path, *, run: str) -> _SafetensorsShard:
        """As in `Sink`."""
        return _SafetensorsShard(path, run)

    def read_shard(self, path: Path) -> ShardContent:
        """As in `Sink`: reads the header, which says what every byte is, and the ids."""
        try:
            header = _Header.read(path)
            ids = _map(path, header.tensors[ID_COLUMN])[:]
            if _OFFSETS in header.tensors and ids.dtype == np.uint8:
                ids = _strings(ids, _map(path, header.tensors[_OFFSETS])[:])
            if ids.dtype.kind not in "iU" or ids.ndim != 1:
                raise ValueError(f"its ids are {ids.dtype} of shape {ids.shape}")
            return ShardContent(header.run, np.array(ids, np.int64 if ids.dtype.kind == "i" else None))
        except _DAMAGES as error:
            raise _damaged(path, error) from error

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """As in `Sink`: maps the file and copies the rows."""
        wanted = np.asarray(positions, np.int64)
        try:
            header = _Header.read(path)
            names = [name for name in header.tensors if name not in {ID_COLUMN, _OFFSETS}]

            def array_of(name: str) -> npt.NDArray[Any]:
                return _map(path, header.tensors[name])

            return read_columns(names, header.ragged, wanted, lambda name: np.array(array_of(name)[wanted]), array_of)
        except _DAMAGES as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} is no whole safetensors file of ours", why=str(error))


@final
@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class _Header:
    """What the beginning of a file says, checked against its size."""

    run: str
    tensors: dict[str, _Tensor]
    ragged: list[str]

    @classmethod
    def read(cls, path: Path) -> _Header:
        """Read it; raises one of `_DAMAGES` if the file is not sound."""
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            begin, size_bytes = _LENGTH_BYTES + length, path.stat().st_size
            if length > _MOST_HEADER_BYTES or begin > size_bytes:
                raise ValueError("it ends in its header")
            content: dict[str, Any] = json.loads(file.read(length))
        told = content.pop(_METADATA, {})
        ragged = list(map(str, json.loads(told.get(_RAGGED_KEY, "[]"))))
        tensors = {name: _tensor(one, begin) for name, one in content.items()}
        end = begin
        for one in sorted(tensors.values(), key=lambda tensor: tensor.offset_bytes):
            if one.offset_bytes != end or min(one.shape, default=1) < 0:
                raise ValueError("its tensors leave bytes out, or lie one in another")
            end += one.size_bytes
        if end != size_bytes:
            raise ValueError(f"it has {size_bytes:,} bytes, and its tensors end at {end:,}")
        return cls(str(told.get(_RUN_KEY, "")), tensors, ragged)


def _tensor(value: dict[str, Any], begin: int) -> _Tensor:
    dtype = _dtype(_NAMES[value["dtype"]])
    start, stop = value["data_offsets"]
    tensor = _Tensor(dtype, tuple(int(one) for one in value["shape"]), begin + int(start))
    if tensor.size_bytes != stop - start:
        raise ValueError(f"a tensor of {tensor.size_bytes:,} bytes has {stop - start:,}")
    return tensor


def _dtype(name: str) -> np.dtype[Any]:
    if name in NARROW:
        try:
            importlib.import_module("ml_dtypes")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"ml_dtypes is not installed, and a tensor is {name}", hint="pip install 'interlock[safetensors]'"
            ) from error
        return np.dtype(name)
    return np.dtype(name).newbyteorder("<")


def _map(path: Path, tensor: _Tensor) -> npt.NDArray[Any]:
    if not tensor.size_bytes:
        return np.empty(tensor.shape, tensor.dtype)
    return np.memmap(path, tensor.dtype, "r", tensor.offset_bytes, tensor.shape)


def _strings(content: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    data = content.tobytes()
    ends = offsets.tolist()
    if ends[0] != 0 or ends[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("where its ids begin does not fit them")
    return np.array([data[start:stop].decode() for start, stop in pairwise(ends)], np.str_)


@final
class _Spool:
    """The rows of one tensor, in a file without a name, since a tensor's bytes lie together in the shard."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, suffix=".tmp", buffering=0)  # noqa: SIM115 - kept
        self._row_shape = row_shape
        self.dtype = dtype
        self.rows = 0
        self.size_bytes = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self._row_shape)

    def append(self, rows: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        self.rows += len(rows)
        self.size_bytes += len(content)
        with writing():
            while content:
                content = content[self._file.write(content) :]

    def move_to(self, target: ShardFile) -> None:
        """Append all rows to a file, in the system where it can, and let go of the spool."""
        done = 0
        with suppress(AttributeError, OSError):  # another storage, or a system that cannot: then it is copied here
            while done < self.size_bytes:
                left = self.size_bytes - done
                moved = os.copy_file_range(self._file.fileno(), target.fileno(), left, done)
                if not moved:
                    break
                done += moved
        self._file.seek(done)
        shutil.copyfileobj(self._file, target, 1 << 20)
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


@final
class _SafetensorsShard:
    """A file being written. Its header comes first and says how many rows there are: so rows wait in spools."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._folder = path.parent
        self._file = ShardFile(path)
        self._ids: list[npt.NDArray[Any]] = []
        self._spools: dict[str, _Spool] = {}
        self._flattened = Flattened()

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """As in `ShardWriter`."""
        for name, column in self._flattened.arrays(columns).items():
            if name not in self._spools:
                dtype = column.dtype if column.dtype.name in NARROW else column.dtype.newbyteorder("<")
                self._spools[name] = _Spool(self._folder, dtype, column.shape[1:])
            self._spools[name].append(column)
        self._ids.append(np.array(ids))

    def close(self) -> None:
        """As in `ShardWriter`."""
        for name, values in _id_tensors(np.concatenate(self._ids)):
            self._spools[name] = _Spool(self._folder, values.dtype, ())
            self._spools[name].append(values)
        # The widest elements first: so each tensor is aligned for its own, which readers that map the file need.
        ordered = dict(sorted(self._spools.items(), key=lambda item: -item[1].dtype.itemsize))
        self._file.write(self._header(ordered))
        for spool in ordered.values():
            with writing():
                spool.move_to(self._file)
        self._file.close()

    def abandon(self) -> None:
        """As in `ShardWriter`."""
        for spool in self._spools.values():
            spool.close()
        with suppress(OSError):
            self._file.close()

    def _header(self, spools: Mapping[str, _Spool]) -> bytes:
        ragged = {_RAGGED_KEY: json.dumps(self._flattened.ragged)} if self._flattened.ragged else {}
        content: dict[str, Any] = {_METADATA: {_RUN_KEY: self._run, **ragged}}
        end = 0
        for name, spool in spools.items():
            offsets = [end, end + spool.size_bytes]
            content[name] = {"dtype": _CODES[spool.dtype.name], "shape": list(spool.shape), "data_offsets": offsets}
            end += spool.size_bytes
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _id_tensors(ids: npt.NDArray[Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    if ids.dtype.kind != "U":
        yield ID_COLUMN, ids.astype("<i8")
        return
    encoded = [one.encode() for one in ids.tolist()]
    yield _OFFSETS, np.cumsum([0, *map(len, encoded)]).astype("<i8")
    yield ID_COLUMN, np.frombuffer(b"".join(encoded), np.uint8)
