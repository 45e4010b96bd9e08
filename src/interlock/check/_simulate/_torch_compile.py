"""`torch.compile` runs eagerly, and the compiler is not loaded only to be told to stay away.

Many of PyTorch's own functions are marked as not to be compiled, and load the compiler (seconds) at their first call.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import ExitStack

    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._reports import Listener

_COMPILER = "torch._dynamo"


class _Absent(ModuleType):
    """Stands for the compiler until something needs more of it than to be left alone."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.left_alone: list[Any] = []

    def disable(self, fn: Any = None, *_: Any, **__: Any) -> Any:
        """Return the function as it is."""
        if fn is None:
            return self.disable
        self.left_alone.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # that one is asked for when a part of it is imported
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> Any:
        """Load the real one."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
            if vars(torch).get("_dynamo") is self:
                delattr(torch, "_dynamo")
        return importlib.import_module(_COMPILER)

    def leave(self) -> None:
        """Undo everything."""
        for function in self.left_alone:
            vars(function).pop("__dynamo_disable", None)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
            if vars(torch).get("_dynamo") is self:
                delattr(torch, "_dynamo")


def patch_compile(patches: Patches, session: Listener, stack: ExitStack) -> None:
    """Make `torch.compile` return what it is given."""

    def compile_(model: Any = None, **options: Any) -> Any:
        session.note("torch.compile ran eagerly: the order inside compiled code is not simulated")
        if model is None:
            return lambda function: compile_(function, **options)
        return model

    patches.set(torch, "compile", compile_)
    patches.set(torch.nn.Module, "compile", lambda self, *_, **__: compile_(self) and None)
    if _COMPILER not in sys.modules:
        absent = _Absent()
        sys.modules[_COMPILER] = absent
        torch._dynamo = absent  # noqa: SLF001 - the package's own attribute
        stack.callback(absent.leave)
