"""Rows that come in groups, decoded a group at a time and the few used last kept; and row groups of Parquet files."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from interlock.errors import SampleError, UsageError
from interlock.feed.sources._columns import Column, Lists, decode
from interlock.feed.sources._runs import runs
from interlock.feed.sources._storage import Storage, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

_KEPT_BYTES = 512 << 20
_KEPT_COUNT = 8
_ONE_BY_ONE = "read its rows one by one, or name it in ragged= of the feed"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Where rows are.

    Attributes:
        path: The file, or its url.
        number: Of the row group in the file.
        rows: Its rows.
    """

    path: str
    number: int
    rows: int


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The rows of a group, or why there are none.

    Attributes:
        arrays: Column name to array, or to lists; first axis rows.
        bad: Position of each row that cannot be a sample, and why.
        failure: Why nothing of the group can be read; empty if it can.
    """

    arrays: dict[str, npt.NDArray[Any] | Lists] = field(default_factory=dict)
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


def open_parquet(location: str) -> Any:
    """Return the open `ParquetFile` at a path or url; close it."""
    return pq.ParquetFile(Storage().open(location) if is_url(location) else location)


def read_group(group: RowGroup, columns: Sequence[Column]) -> DecodedGroup:
    """Read and decode a row group; never raises for what the file does."""
    try:
        with open_parquet(group.path) as file:
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
    """The row groups used last, at most `count` and about 512 MiB of them. Safe on any number of threads.

    Args:
        read: Decodes a group by its number.
        count: How many are kept.

    Blocks: a thread that wants a group which another one is decoding waits for it.
    """

    def __init__(self, read: Callable[[int], DecodedGroup], count: int = _KEPT_COUNT) -> None:
        self._read = read
        self._count = count
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def __reduce__(self) -> tuple[type[GroupCache], tuple[Callable[[int], DecodedGroup], int]]:
        return GroupCache, (self._read, self._count)  # what is kept stays here

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
            while len(self._entries) > 1 and (len(self._entries) > self._count or nbytes > _KEPT_BYTES):
                _, oldest = self._entries.popitem(last=False)
                nbytes -= oldest.group.nbytes if oldest.group is not None else 0


@final
class _Entry:
    __slots__ = ("group", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group: DecodedGroup | None = None


@final
class GroupedRows:
    """The rows of all groups, by their number: what a source over columns reads.

    Args:
        label: The file or folder, for messages.
        counts: Rows of each group, none of them 0.
        columns: What makes a sample; one is an array, several are a dict.
        ids: What names the rows, as an Arrow array; None for their numbers.
        read: Decodes a group by its number.
        kept: How many groups are kept.
    """

    def __init__(
        self,
        label: str,
        counts: Sequence[int],
        columns: Sequence[Column],
        ids: Any,
        read: Callable[[int], DecodedGroup],
        kept: int = _KEPT_COUNT,
    ) -> None:
        self.starts = list(itertools.accumulate(counts, initial=0))
        """First row of each group, and the number of rows."""
        self.columns = columns
        self._ids = ids
        self._label = label
        self._cache = GroupCache(read, kept)

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def described(self) -> list[str]:
        """Name, dtype and row shape of each column, for fingerprints."""
        return [str(one) for one in self.columns]

    def id_of(self, index: int) -> int | str:
        """Return the id of a row."""
        if self._ids is None:
            return index
        value: int | str = self._ids[index].as_py()
        return value

    def row(self, index: int) -> Any:
        """Return one row.

        Raises:
            IndexError: There is no such row.
            SampleError: It cannot be read, has a null, or a list of another length than the first row's.
        """
        group, position = self._locate(index)
        values = {one.name: group.arrays[one.name][position] for one in self.columns}
        return values if len(values) > 1 else values[self.columns[0].name]

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """Read rows `indices` into `out`, each run of neighbours in one copy.

        Args:
            indices: Row numbers.
            out: An array, or a dict of them; first axis `len(indices)`.

        Raises:
            IndexError: There is no such row.
            SampleError: As `row` does.
            UsageError: The rows of a column are lists of any length.

        Copies: once, from the decoded group into `out`.
        """
        for one in self.columns:
            if one.ragged:
                raise UsageError(f"column {one.name!r} has lists of any length, which make no array", hint=_ONE_BY_ONE)
        targets = out if len(self.columns) > 1 else {self.columns[0].name: out}
        for start, stop, first in runs(indices):
            done = start
            while done < stop:
                group, position = self._locate(first + done - start)
                count = min(stop - done, group.rows - position)
                for step in range(count if group.bad else 0):
                    self._locate(first + done - start + step)  # raises for the first bad row
                for name, array in group.arrays.items():
                    targets[name][done : done + count] = array[position : position + count]  # type: ignore[index] # no lists
                done += count

    def _locate(self, index: int) -> tuple[DecodedGroup, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self.starts, index) - 1
        group = self._cache.get(number)
        position = index - self.starts[number]
        what = f"cannot read row {index} of {self._label}"
        if group.failure:
            raise SampleError(what, index=index, why=group.failure, hint="write the file again")
        if position in group.bad:
            hint = "fill or drop it, or choose other columns with --columns"
            raise SampleError(what, index=index, why=group.bad[position], hint=hint)
        return group, position
