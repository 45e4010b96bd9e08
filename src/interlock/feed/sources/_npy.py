"""The rows of a `.npy` file, read straight to where they are wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock.errors import SampleError, SourceError
from interlock.feed.sources._digest import digest_file
from interlock.feed.sources._runs import runs
from interlock.feed.sources._storage import Storage, as_location

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import BinaryIO

_NUMBERS = "biufc"


@final
class NpySource:
    """Rows of one array. Big-endian files come out in the order of this machine. Ids are row numbers.

    The file is read, never mapped: one that shrinks meanwhile fails at its sample and does not kill the process.

    Args:
        path: A `.npy` file, or a url of one, in C order, of numbers, with at least one axis and one row.

    Raises:
        SourceError: It is not.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = as_location(path)
        self._storage = Storage()
        try:
            present = self._storage.stamp(self._path).size_bytes
            with self._storage.open(self._path) as file:
                shape, fortran, dtype = _read_header(file, self._path)
                self._start_bytes = file.tell()
        except OSError as error:
            raise SourceError(
                f"cannot read {path}", why=error.strerror or str(error), hint="check its permissions"
            ) from error
        _check(self._path, shape, dtype, fortran=fortran)
        self._shape = shape[1:]
        self._rows = shape[0]
        self._dtype = dtype.newbyteorder("=")
        self._swapped = not dtype.isnative
        self._row_bytes = math.prod(self._shape) * dtype.itemsize
        self._check_size(present - self._start_bytes)

    def _check_size(self, present: int) -> None:
        if present < self._rows * self._row_bytes:
            raise SourceError(
                f"{self._path} is cut short",
                why=f"its header says {self._rows} rows and it holds {present // self._row_bytes}",
                hint="copy or save it again",
            )

    def __repr__(self) -> str:
        return f"NpySource({self._path!r}, rows={self._rows}, shape={self._shape}, dtype={self._dtype})"

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """Read one row.

        Raises:
            IndexError: There is no such row.
            SampleError: It cannot be read.
        """
        if not 0 <= index < self._rows:
            raise IndexError(index)
        row = np.empty(self._shape, self._dtype)
        self._read(index, row)
        return row

    def read_into(self, indices: Sequence[int], out: npt.NDArray[Any]) -> None:
        """Read rows `indices` into `out`, neighbours in one call to the system.

        Args:
            indices: Row numbers.
            out: C-contiguous, the source's own dtype, shape (len(indices), ...).

        Raises:
            SampleError: One of them cannot be read.

        Copies: none; the system writes into `out`.
        """
        for start, stop, index in runs(indices):
            self._read(index, out[start:stop])

    def fingerprint(self) -> dict[str, Any]:
        """Rows, shape and dtype of a row, and a digest of the file's size and of up to 256 blocks of 64 KiB."""
        return {
            "kind": "npy",
            "rows": self._rows,
            "shape": list(self._shape),
            "dtype": str(self._dtype),
            "content": digest_file(self._path),
        }

    def _read(self, index: int, target: npt.NDArray[Any]) -> None:
        view = target.reshape(-1).view(np.uint8).data
        offset = self._start_bytes + index * self._row_bytes
        done = 0
        while done < len(view):
            try:
                count = self._storage.read_into(self._path, offset + done, view[done:])
            except OSError as error:
                raise self._failure(index + done // self._row_bytes, error.strerror or str(error)) from error
            if count == 0:
                raise self._failure(index + done // self._row_bytes, f"the file ends at byte {offset + done}")
            done += count
        if self._swapped:
            target.byteswap(inplace=True)

    def _failure(self, index: int, why: str) -> SampleError:
        return SampleError(
            f"cannot read row {index} of {self._path}", index=index, why=why, hint="did the file shrink?"
        )


def _read_header(file: BinaryIO, path: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    except ValueError as error:
        raise SourceError(f"{path} is not a .npy file", why=str(error), hint="write it with numpy.save") from error
    raise SourceError(
        f"{path} has version {version[0]}.{version[1]} of the .npy format",
        why="only structured arrays need it",
        hint="save each field as an array of its own",
    )


def _check(path: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool) -> None:
    if dtype.kind == "O":
        raise SourceError(
            f"{path} has dtype object",
            why="its content is pickled, and loading a pickle runs code",
            hint="save arrays of numbers; np.stack makes one of equal shapes",
        )
    if dtype.kind not in _NUMBERS:
        raise SourceError(f"{path} has dtype {dtype}", why="samples are numbers", hint="save it as numbers")
    if not shape:
        raise SourceError(
            f"{path} holds a single number", why="it has no axis for samples", hint="save an array of samples"
        )
    if fortran and len(shape) > 1:
        raise SourceError(
            f"{path} is in Fortran order",
            why="its rows do not lie together",
            hint="save it again with numpy.save(path, numpy.ascontiguousarray(array))",
        )
    if shape[0] == 0:
        raise SourceError(f"{path} has no rows", hint="check what wrote it")
