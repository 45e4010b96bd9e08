"""What is left to do: a source without the rows that are committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import SupportsIds, SupportsReadInto
from interlock.drain._ids import as_ids
from interlock.drain._todo import todo, todo_rows
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from interlock.drain._idsets import EitherIds, IdSet
    from interlock.drain._todo import Todo

_ASKED_ROWS = 1 << 20
_MOST_LISTED = 1 << 22
"""Rows up to which their numbers are kept as they are; beyond, as a bit each."""


class PendingSource:
    """The samples of a map-style source whose ids are not committed, in the source's order.

    Args:
        source: The whole source.
        left: Which samples of it are left.

    Attributes:
        source: As given.
    """

    def __init__(self, source: Any, left: Todo) -> None:
        self.source = source
        self._left = left
        self._index = self.index if len(left) <= _MOST_LISTED else None
        # Asked once: asking a protocol takes 10 us, which is too much for each row.
        self._names = source if isinstance(source, SupportsIds) else None

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """The numbers of the samples that are left. Takes 8 bytes for each."""
        parts = list(self._left.position_blocks())
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._left)

    def _row(self, index: int) -> int:
        return self._left.position(index) if self._index is None else int(self._index[index])

    def __getitem__(self, index: int, /) -> Any:
        return self.source[self._row(index)]

    def __repr__(self) -> str:
        return f"PendingSource({len(self)} of {len(self.source)})"

    def id_of(self, index: int) -> int | str:
        """Return the id of sample `index` of what is left."""
        row = self._row(index)
        return row if self._names is None else self._names.id_of(row)


@final
class PendingBlockSource(PendingSource):
    """A pending source over one that can write many samples at once."""

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """As in `SupportsReadInto`."""
        wanted = np.asarray(indices, np.int64)
        rows = self._left.positions(wanted) if self._index is None else self._index[wanted]
        self.source.read_into(rows, out)


def pending_source(
    source: Any, committed: IdSet | EitherIds, rank: int, world: int
) -> PendingSource | Iterator[tuple[Any, Any]]:
    """Return what of `source` is not committed; see `Drain.pending`.

    Raises:
        UsageError: `source` is no source.
    """
    if isinstance(source, (Mapping, str, bytes)):
        raise UsageError(
            f"a {type(source).__name__} is no source",
            why="samples are found by number",
            hint="pass something with __len__ and __getitem__(int), or an iterable of (id, sample)",
        )
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        rows = range(len(source))
        has_names = isinstance(source, SupportsIds)
        left = (todo_rows if has_names else todo)(source if has_names else rows, committed, rank, world)
        return PendingBlockSource(source, left) if isinstance(source, SupportsReadInto) else PendingSource(source, left)
    if isinstance(source, Iterable):
        return _pending_pairs(source, committed)
    raise UsageError(
        f"a {type(source).__name__} is no source",
        why="it can be neither indexed nor iterated",
        hint="pass something with __len__ and __getitem__(int), or an iterable of (id, sample)",
    )


def _pending_pairs(source: Iterable[Any], committed: IdSet | EitherIds) -> Iterator[tuple[Any, Any]]:
    for position, item in enumerate(source):
        if not isinstance(item, (tuple, list)) or len(item) != 2:  # noqa: PLR2004 - a pair
            raise UsageError(
                f"item {position} of the source is a {type(item).__name__}",
                why="an iterable without numbers must say which sample is which",
                hint="yield (id, sample) pairs",
            )
        one, sample = item
        if not _is_committed(one, committed):
            yield one, sample


def _is_committed(one: Any, committed: IdSet | EitherIds) -> bool:
    return as_ids([one]).tolist()[0] in committed
