"""Who emits events in a session: the simulator of torch, and the watchers of hazards that need no device.

A program imports its frameworks when it likes, so each source is started when its framework is loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from interlock.check._session import Session
    from interlock.devices import Schedule


@contextmanager
def activate_sources(schedule: Schedule, session: Session) -> Iterator[None]:
    """Start every source whose framework is loaded, and each other one when its framework is."""
    with ExitStack() as stack:
        _activate_watch(stack, session)
        if "torch" in sys.modules:
            _activate_torch(stack, schedule, session)
        else:
            hook = _AfterImport("torch", lambda: _activate_torch(stack, schedule, session))
            sys.meta_path.insert(0, hook)
            stack.callback(lambda: sys.meta_path.remove(hook) if hook in sys.meta_path else None)
        yield


def _activate_torch(stack: ExitStack, schedule: Schedule, session: Session) -> None:
    from interlock.check import _simulate  # noqa: PLC0415 - loads torch

    stack.enter_context(_simulate.activate(schedule, session))


def _activate_watch(stack: ExitStack, session: Session) -> None:
    from interlock.check import _watch  # noqa: PLC0415 - not needed before a session begins

    stack.enter_context(_watch.activate(session))


@final
class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action` once, when a module has been imported."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - part of the protocol
        target: ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the module, and have its loader call us."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute, action = loader.exec_module, self._action

            def exec_module(module: ModuleType) -> None:
                execute(module)
                action()

            loader.exec_module = exec_module
        return spec
