"""Row groups of Parquet files: where they are, decoded, and the few that are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from interlock.feed.sources._columns import Column, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

_KEPT_BYTES = 512 << 20
_KEPT_COUNT = 8


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where rows are.

    Attributes:
        path: The file.
        number: Of the row group in the file.
        rows: Its rows.
    """

    path: Path
    number: int
    rows: int


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The rows of a group, or why there are none.

    Attributes:
        arrays: Column name to array; first axis rows.
        bad: Position of each row that cannot be a sample, and why.
        failure: Why nothing of the group can be read; empty if it can.
    """

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def rows(self) -> int:
        """Rows of the arrays."""
        return next((len(array) for array in self.arrays.values()), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def read_group(group: RowGroup, columns: Sequence[Column]) -> DecodedGroup:
    """Read and decode a row group; never raises for what the file does."""
    try:
        with pq.ParquetFile(group.path) as file:
            table = file.read_row_group(group.number, columns=[one.name for one in columns], use_threads=False)
        if table.num_rows != group.rows:
            return DecodedGroup(failure=f"{group.path} changed while it was read")
        decoded = {one.name: decode(table.column(one.name).combine_chunks(), one) for one in columns}
    except (OSError, pa.ArrowException, IndexError, KeyError) as error:
        reason = " ".join(str(error).split())
        return DecodedGroup(failure=f"row group {group.number} of {group.path} cannot be read: {reason}")
    bad: dict[int, str] = {}
    for one in decoded.values():
        bad = {**one.bad, **bad}
    return DecodedGroup({name: one.values for name, one in decoded.items()}, bad)


@final
class GroupCache:
    """The row groups used last, at most 8 and about 512 MiB of them. Safe on any number of threads.

    Args:
        read: Decodes a group by its number.

    Blocks: a thread that wants a group which another one is decoding waits for it.
    """

    def __init__(self, read: Callable[[int], DecodedGroup]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def get(self, number: int) -> DecodedGroup:
        """Return a group, decoding it if it is not kept."""
        with self._lock:
            entry = self._entries.setdefault(number, _Entry())
            self._entries.move_to_end(number)
        with entry.lock:
            if entry.group is None:
                entry.group = self._read(number)
                self._trim()
            return entry.group

    def _trim(self) -> None:
        """Let go of the groups used longest ago; one that is being decoded goes when its reader is done."""
        with self._lock:
            groups = [entry.group for entry in self._entries.values()]
            nbytes = sum(group.nbytes for group in groups if group is not None)
            while len(self._entries) > 1 and (len(self._entries) > _KEPT_COUNT or nbytes > _KEPT_BYTES):
                _, oldest = self._entries.popitem(last=False)
                nbytes -= oldest.group.nbytes if oldest.group is not None else 0


@final
class _Entry:
    __slots__ = ("group", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group: DecodedGroup | None = None
