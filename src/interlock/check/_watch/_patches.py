"""Functions of other modules, replaced for the time of a session."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

F = TypeVar("F", bound="Callable[..., Any]")


@final
class Patches:
    """What was replaced, to be put back in the opposite order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], *, is_needed: bool = False) -> None:
        """Replace `owner.name` by `make(original)`, if it exists.

        Raises:
            AttributeError: It does not exist, and is needed.
        """
        original = getattr(owner, name, None)
        if original is None:
            if is_needed:
                raise AttributeError(f"{owner!r} has no {name}")
            return
        self._undo.append((owner, name, original, name in vars(owner)))
        setattr(owner, name, make(original))

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, original, own = self._undo.pop()
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


def named_like(original: Any) -> Callable[[F], F]:
    """Return a decorator that gives a replacement the name and text of `original`, as far as it has them."""

    def name(replacement: F) -> F:
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            value = getattr(original, attribute, None)
            if isinstance(value, str):
                setattr(replacement, attribute, value)
        setattr(replacement, "__wrapped__", original)  # noqa: B010 - a function has it, its type does not
        return replacement

    return name


@contextmanager
def when_loaded(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` now if module `name` is loaded, otherwise right after it has been."""
    if name in sys.modules:
        action()
        yield
        return
    hook = _Hook(name, action)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        if hook in sys.meta_path:
            sys.meta_path.remove(hook)


@final
class _Hook(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and has its loader call `action` afterwards."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._looking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - part of the protocol
        target: ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> ModuleSpec | None:
        """Find the module once; see the class."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action()

        loader.exec_module = exec_module
        return spec
