"""Nested dicts, tuples and lists of arrays: what samples, batches and outputs are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, final

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@final
@dataclass(frozen=True, slots=True)
class Structure:
    """How the leaves of a tree hang together.

    Attributes:
        kind: Type of the node; None for a leaf.
        keys: Keys of a dict node, in its order.
        children: One per key or position.
    """

    kind: type | None
    keys: tuple[str, ...]
    children: tuple[Structure, ...]

    def names(self) -> list[str]:
        """Return a dotted name per leaf, in leaf order: `image`, `pair.0`; a lone leaf has the empty name.

        Raises:
            UsageError: Two leaves would have one name.
        """
        names = _names(self, "")
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"two parts of a sample would be called {name!r}",
                    why="names of nested parts are joined by dots",
                    hint="rename one of them",
                )
        return names

    def leaves_of(self, tree: Any) -> list[Any] | None:
        """Return the leaves of `tree` if it has this structure, else None. Sooner than `flatten` and a comparison."""
        leaves: list[Any] = []
        return leaves if _collect(self, tree, leaves) else None

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Return a tree of this structure with the given leaves."""
        return _rebuild(self, iter(leaves))


LEAF = Structure(None, (), ())


def _names(structure: Structure, prefix: str) -> list[str]:
    if structure.kind is None:
        return [prefix]
    labels = structure.keys or tuple(str(position) for position in range(len(structure.children)))
    return [
        name
        for label, child in zip(labels, structure.children, strict=True)
        for name in _names(child, f"{prefix}.{label}" if prefix else label)
    ]


def _collect(structure: Structure, tree: Any, leaves: list[Any]) -> bool:
    if structure.kind is None:
        leaves.append(tree)
        return not isinstance(tree, (dict, tuple, list))
    if type(tree) is not structure.kind:
        return False
    parts: Any = tree
    if isinstance(tree, dict):
        if tuple(tree) != structure.keys:
            return False
        parts = tree.values()
    elif len(parts) != len(structure.children):
        return False
    return all(map(_collect, structure.children, parts, repeat(leaves)))


def _rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(leaves)
    values = [_rebuild(child, leaves) for child in structure.children]
    if issubclass(structure.kind, dict):
        return dict(zip(structure.keys, values, strict=True))
    if hasattr(structure.kind, "_fields"):  # a named tuple
        return structure.kind(*values)
    return list(values) if issubclass(structure.kind, list) else tuple(values)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of `tree`, left to right, and its structure.

    Raises:
        UsageError: A dict has a key that is not a string.
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise UsageError(f"dict key {key!r} is not a string", hint="name the parts of a sample with strings")
        return Structure(type(tree), tuple(tree), tuple(_flatten(value, leaves) for value in tree.values()))
    if isinstance(tree, (tuple, list)):
        return Structure(type(tree), (), tuple(_flatten(value, leaves) for value in tree))
    leaves.append(tree)
    return LEAF
