"""Small batches of arrays: several lie in one slot, since a slot costs more than the copy of such a batch.

What a slot costs from claim to reclaim is some 30 us, and with worker threads two wake-ups more. Eight blocks of 4,097
tokens are copied in 15 us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock._core._events import observed
from interlock._core._spans import traced
from interlock._core._tree import flatten
from interlock.feed._samples import ArraySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from interlock.feed._iteration import Passes

_MOST = 16
_SLOT_BYTES = 2 << 20
"""Then a batch of 512 KB, which takes as long as a slot costs, shares it with three."""
_FEWEST = 4
_SLOTS_OF_EPOCH = 64
"""A short epoch would lose more by a late first batch than it gains."""
_SLOTS_OF_BUDGET = 64
_SLICED = frozenset({"numpy", "torch"})
"""Frameworks in which a part of an array is a view, and no computation."""


def batches_together(source: Any, batch_size: int, passes: Passes) -> int:
    """Return how many batches of a source to read into one slot; 1 but for small batches of arrays.

    Arrays cannot fail, so no batch is held up by an error in another one. Statistics count all of a slot when the first
    is handed over, and traces have one entry for them, so a traced or checked program has slots of one batch.

    Args:
        source: As in `Feed`.
        batch_size: As in `Feed`.
        passes: Knows where batches go.
    """
    views = passes.framework.name in _SLICED and passes.receiver is None and passes.device.host_visible
    if not isinstance(source, ArraySource) or not views:
        return 1
    batch_bytes = max(1, batch_size * source.row_bytes)
    slot_bytes = min(_SLOT_BYTES, passes.budget_bytes // _SLOTS_OF_BUDGET)
    epoch = len(source) // batch_size // _SLOTS_OF_EPOCH
    count = min(_MOST, slot_bytes // batch_bytes, epoch)
    return count if count >= _FEWEST and not traced() and not observed() else 1


def apart(
    tree: Any, rows: int, batch_size: int, lend: Callable[[npt.NDArray[Any]], Any]
) -> Iterator[tuple[slice, Any]]:
    """Go through the batches in `rows` rows of a tree of NumPy arrays.

    Each is lent by itself: tensors of torch that are parts of one know of each other's changes, and are saved whole.

    Returns:
        The rows of each, and its tree of arrays.
    """
    leaves, structure = flatten(tree)
    for first in range(0, rows, batch_size):
        own = slice(first, min(first + batch_size, rows))
        yield own, structure.rebuild([lend(leaf[own]) for leaf in leaves])
