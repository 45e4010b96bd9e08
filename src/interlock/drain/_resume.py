"""What is left to do: a source without the rows that are committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._protocols import SupportsIds, SupportsReadInto
from interlock.drain._ids import as_ids
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from interlock.drain._ids import IdSet

_BLOCK_ROWS = 1 << 20


class PendingSource:
    """The samples of a map-style source whose ids are not committed, in the source's order.

    Args:
        source: The whole source.
        index: Which samples of it are left.

    Attributes:
        source: As given.
        index: As given, int64.
    """

    def __init__(self, source: Any, index: npt.NDArray[np.int64]) -> None:
        self.source = source
        self.index = index
        # Asked once: asking a protocol takes 10 us, which is too much for each row.
        self._names = source if isinstance(source, SupportsIds) else None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int, /) -> Any:
        return self.source[int(self.index[index])]

    def __repr__(self) -> str:
        return f"PendingSource({len(self.index)} of {len(self.source)})"

    def id_of(self, index: int) -> int | str:
        """Return the id of sample `index` of what is left."""
        row = int(self.index[index])
        return row if self._names is None else self._names.id_of(row)


@final
class PendingBlockSource(PendingSource):
    """A pending source over one that can write many samples at once."""

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """As in `SupportsReadInto`."""
        self.source.read_into(self.index[np.asarray(indices, np.int64)], out)


def pending_source(source: Any, committed: IdSet) -> PendingSource | Iterator[tuple[Any, Any]]:
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
        index = _pending_index(source, committed)
        is_block = isinstance(source, SupportsReadInto)
        return PendingBlockSource(source, index) if is_block else PendingSource(source, index)
    if isinstance(source, Iterable):
        return _pending_pairs(source, committed)
    raise UsageError(
        f"a {type(source).__name__} is no source",
        why="it can be neither indexed nor iterated",
        hint="pass something with __len__ and __getitem__(int), or an iterable of (id, sample)",
    )


def _pending_index(source: Any, committed: IdSet) -> npt.NDArray[np.int64]:
    count = len(source)
    found = []
    for start in range(0, count, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, count)
        if isinstance(source, SupportsIds):
            ids = as_ids([source.id_of(row) for row in range(start, stop)])
        else:
            ids = np.arange(start, stop, dtype=np.int64)
        found.append(start + np.flatnonzero(~committed.contains_many(ids)))
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


def _pending_pairs(source: Iterable[Any], committed: IdSet) -> Iterator[tuple[Any, Any]]:
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


def _is_committed(one: Any, committed: IdSet) -> bool:
    return as_ids([one]).tolist()[0] in committed
