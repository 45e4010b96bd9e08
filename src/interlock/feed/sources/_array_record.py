"""Records of ArrayRecord files."""

from __future__ import annotations

import bisect
import itertools
import threading
from typing import TYPE_CHECKING, Any, final

from array_record.python.array_record_data_source import ArrayRecordDataSource

from interlock.errors import InterlockError, SampleError, SourceError
from interlock.feed.sources._digest import digest_file
from interlock.feed.sources._storage import as_locations, is_url
from interlock.feed.sources._webdataset import short_names

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence


@final
class ArrayRecordSource:
    """Records of ArrayRecord files, by index, in the order of the files.

    Ids are `file:record`. Reads go through the `array_record` package, which releases the GIL; a file is opened when it
    is first read. Files that were written with `group_size:1` are read record by record, others group by group.

    Args:
        paths: Local files, as a path or a list of them.
        decode: Makes a sample from a record's bytes; called on many threads.

    Raises:
        SourceError: There is no record, or a file cannot be read.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        decode: Callable[[bytes], Any],
    ) -> None:
        self._paths = as_locations(paths)
        remote = next((path for path in self._paths if is_url(path)), None)
        if remote is not None:
            raise SourceError(f"{remote} is remote", why="array_record reads local files", hint="copy it first")
        self._decode = decode
        self._lock = threading.Lock()
        self._files: dict[int, Any] = {}
        self._starts = list(itertools.accumulate((self._count(path) for path in self._paths), initial=0))
        if not self._starts[-1]:
            raise SourceError(f"{paths} holds no record", hint="check what wrote it")
        self._names = short_names(self._paths)

    @staticmethod
    def _count(path: str) -> int:
        try:
            return len(ArrayRecordDataSource([path]))
        except Exception as error:  # the package raises anything on a damaged file
            why = " ".join(str(error).split())
            raise SourceError(f"{path} cannot be read as ArrayRecord", why=why, hint="write it again") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"ArrayRecordSource(files={len(self._paths)}, records={len(self)})"

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        """Read and decode one record.

        Raises:
            IndexError: There is no such record.
            SampleError: It cannot be read or decoded.
        """
        file, record = self._locate(index)
        try:
            return self._decode(self._opened(file)[record])
        except InterlockError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            hint = "write the file again, or mend decode="
            what = f"record {self.id_of(index)!r} cannot be read"
            raise SampleError(what, index=index, why=why, hint=hint) from error

    def id_of(self, index: int) -> str:
        """Return `file:record`."""
        file, record = self._locate(index)
        return f"{self._names[file]}:{record}"

    def chunk_starts(self) -> list[int]:
        """Return the index of the first record of each file that has one."""
        return sorted(set(self._starts[:-1]) - {len(self)})

    def fingerprint(self) -> dict[str, Any]:
        """Records, and a digest of each file's size and of up to 256 blocks of it."""
        return {"kind": "array_record", "rows": len(self), "content": [digest_file(path) for path in self._paths]}

    def _opened(self, file: int) -> Any:
        with self._lock:
            if file not in self._files:
                self._files[file] = ArrayRecordDataSource([self._paths[file]])
            return self._files[file]

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = bisect.bisect_right(self._starts, index) - 1
        return file, index - self._starts[file]
