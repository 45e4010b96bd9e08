"""Runs of neighbours in a list of indices: what one read or one copy can serve."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split `indices` into runs that count up by one.

    Args:
        indices: Any order.

    Returns:
        (start, stop, index) per run: it fills positions `start` to `stop` and begins at `index`.
    """
    if isinstance(indices, range):
        array = np.arange(indices.start, indices.stop, indices.step)
    else:
        array = np.asarray(indices, dtype=np.int64)
    if not len(array):
        return []
    edges = [0, *(np.flatnonzero(np.diff(array) != 1) + 1).tolist(), len(array)]
    return [(start, stop, int(array[start])) for start, stop in itertools.pairwise(edges)]
