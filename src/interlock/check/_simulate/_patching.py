"""Patches that are all undone, last first."""

from __future__ import annotations

from typing import Any, final

_ABSENT = object()


@final
class Patches:
    """Attributes that were replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module, class or object."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def present(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute if it is there: versions differ."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
