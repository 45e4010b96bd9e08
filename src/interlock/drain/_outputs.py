"""Outputs taken apart: a leaf per column, and which rows of all of them go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from interlock._core._rows import RaggedRows
from interlock._core._tree import flatten
from interlock.drain._leaves import ALIGNMENT, Leaf, leaf_of
from interlock.drain._ragged import Ragged, chosen
from interlock.drain._ragged_leaves import RaggedLeaf, ragged_leaf
from interlock.drain._schema import ID_COLUMN
from interlock.errors import UsageError
from interlock.frameworks import framework_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._rows import Rows

AnyLeaf: TypeAlias = Leaf | RaggedLeaf

LONE_NAME = "output"
"""Column name of an output that is one array."""

_MOST_PARTS = 2
"""Arrays of one leaf in a slot."""

_PARTS = ({"values", "lengths"}, {"values", "offsets"})
"""What a feed calls the two arrays of a ragged leaf."""


def leaves_of(outputs: Any, rows: int) -> list[AnyLeaf]:
    """Return the leaves of `outputs`.

    Args:
        outputs: An array, a `Ragged`, or nested dicts and tuples of such.
        rows: How many each must have.

    Raises:
        UsageError: There is no leaf, or one is no array, has no rows or another number of them, or a name that is
            taken.
    """
    values, structure = flatten(with_ragged(outputs))
    names = [LONE_NAME] if structure.kind is None else structure.names()
    if not values:
        raise UsageError("the outputs hold no array", hint="put at least one per row")
    for name in names:
        if not name or name == ID_COLUMN:
            why = "the column of that name holds the ids" if name else "a column needs a name"
            raise UsageError(f"an output is called {name!r}", why=why, hint="rename it")
    leaves = [_leaf(name, value, rows) for name, value in zip(names, values, strict=True)]
    refuse_same_names(leaves)
    return leaves


def with_ragged(tree: Any) -> Any:
    """Return a tree in which what a feed makes of a ragged leaf is one leaf."""
    if isinstance(tree, dict):
        if set(tree) in _PARTS and not isinstance(tree["values"], (dict, list, tuple)):
            return Ragged(**tree)
        return {key: with_ragged(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(with_ragged(value) for value in tree)
    return tree


def _leaf(name: str, value: Any, rows: int) -> AnyLeaf:
    if isinstance(value, RaggedRows):
        value = Ragged(value.values, offsets=value.offsets)
    take_apart: Callable[[Any], tuple[Any, Any] | None] | None = getattr(framework_of(value), "jagged", None)
    found = None if take_apart is None else take_apart(value)
    if found is not None:
        value = Ragged(found[0], offsets=found[1])
    return ragged_leaf(name, value, rows) if isinstance(value, Ragged) else leaf_of(name, value, rows)


def refuse_same_names(leaves: Sequence[AnyLeaf]) -> None:
    """Refuse outputs that would be stored under one name: a ragged one takes `NAME.values` and `NAME.offsets` too.

    Raises:
        UsageError: There are two such; the message says under which.
    """
    taken: set[str] = set()
    for leaf in leaves:
        names = [f"{leaf.name}.values", f"{leaf.name}.offsets"] if isinstance(leaf, RaggedLeaf) else []
        for name in (leaf.name, *names):
            if name in taken:
                raise UsageError(f"two outputs would be called {name!r}", hint="rename one of them")
            taken.add(name)


def leaves_of_rows(columns: Mapping[str, Rows], which: npt.NDArray[Any]) -> list[AnyLeaf]:
    """Return the leaves of some rows on the host: those at places, or where a mask is true."""
    some = {name: chosen(column, which) for name, column in columns.items()}
    return [_leaf(name, rows, len(rows)) for name, rows in some.items()]


def chunk_bytes(leaves: Sequence[AnyLeaf], start: int, stop: int) -> int:
    """Return the bytes that rows `start` to `stop` of all leaves take in slots."""
    if len(leaves) == 1:
        return leaves[0].size_bytes(start, stop)
    return sum(leaf.size_bytes(start, stop) for leaf in leaves)


def chunks_of(leaves: Sequence[AnyLeaf], rows: int, budget_bytes: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield which rows to take together: at most a share of the budget, unless one alone is more.

    The shares are one for each lane and one more: so each writes a chunk while the next is filled. Where all rows have
    one size, so have the chunks but the last: then slots fit when they are used again. Leaves that are not settled must
    go whole.
    """
    share_bytes = budget_bytes // (1 + lanes)
    if chunk_bytes(leaves, 0, rows) <= share_bytes:
        yield 0, rows
        return
    sizes = [leaf.row_sizes() for leaf in leaves]
    plain = sum(size for size in sizes if isinstance(size, int))
    slack_bytes = len(leaves) * _MOST_PARTS * ALIGNMENT
    if any(not isinstance(size, int) for size in sizes):
        ends = np.cumsum(sum(size for size in sizes if not isinstance(size, int)) + plain)
        yield from _filled(ends, max(0, share_bytes - slack_bytes))
        return
    shares = (budget_bytes // parts for parts in range(1 + lanes, 0, -1))
    count = next((fit for share in shares if (fit := _rows_within(leaves, plain, share))), 1)
    count = -(-rows // -(-rows // count))
    for start in range(0, rows, count):
        yield start, min(start + count, rows)


def _rows_within(leaves: Sequence[AnyLeaf], row_bytes: int, limit_bytes: int) -> int:
    """Return how many rows take at most `limit_bytes` in slots; maybe 0."""
    if chunk_bytes(leaves, 0, 1) > limit_bytes:
        return 0
    slack_bytes = sum(ALIGNMENT - 1 if isinstance(leaf, Leaf) else _MOST_PARTS * ALIGNMENT for leaf in leaves)
    return max(1, (limit_bytes - slack_bytes) // max(1, row_bytes))


def _filled(ends: npt.NDArray[np.int64], limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield as many rows at a time as take `limit_bytes`, or one that takes more; `ends` sums up their sizes."""
    start = done_bytes = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done_bytes + limit_bytes, side="right")))
        yield start, stop
        start, done_bytes = stop, int(ends[stop - 1])
