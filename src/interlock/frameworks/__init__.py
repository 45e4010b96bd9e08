"""Who holds arrays. One framework a file; none knows another.

Each is imported only when asked for by name, or when the program has imported the framework itself.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock._core._protocols import Framework

__all__ = ["framework_named", "framework_of", "framework_running"]

_TABLE = {
    "numpy": ("interlock.frameworks._numpy", "NumpyFramework"),
    "torch": ("interlock.frameworks._torch", "TorchFramework"),
    "jax": ("interlock.frameworks._jax", "JaxFramework"),
}


@cache
def framework_named(name: str) -> Framework:
    """Return the framework called `name`, importing it if need be.

    Raises:
        UsageError: There is no such framework, or it is not installed.
    """
    if name not in _TABLE:
        raise UsageError(f"no framework is called {name!r}", hint=f"use one of {', '.join(_TABLE)}")
    module, attribute = _TABLE[name]
    try:
        framework: Framework = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"{name} is not installed", hint=f"pip install 'interlock[{name}]'") from error
    return framework


def _loaded() -> Iterator[Framework]:
    return (framework_named(name) for name in _TABLE if sys.modules.get(name) is not None)


def framework_of(value: object) -> Framework | None:
    """Return the framework that `value` is an array of; never imports one that the program did not."""
    return next((framework for framework in _loaded() if framework.owns(value)), None)


def framework_running(model: object) -> Framework | None:
    """Return the framework whose arrays the callable `model` wants, or None if it does not say."""
    return next((framework for framework in _loaded() if framework.runs(model)), None)
