"""Who holds arrays. One framework a file; none knows another.

Each is imported only when asked for by name, or when the program has imported the framework itself.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock._core._protocols import DeviceArray, Framework

__all__ = [
    "device_array_of",
    "framework_for",
    "framework_named",
    "framework_of",
    "framework_running",
    "on_devices",
    "process_rank",
    "reductions_of",
]

_TABLE = {
    "numpy": ("interlock.frameworks._numpy", "NumpyFramework"),
    "torch": ("interlock.frameworks._torch", "TorchFramework"),
    "jax": ("interlock.frameworks._jax", "JaxFramework"),
    "cupy": ("interlock.frameworks._cupy", "CupyFramework"),
}


def reductions_of(framework: Framework) -> Any:
    """Return the module whose functions, as `cast` and `top_k`, make arrays of `framework` smaller where they lie."""
    return importlib.import_module(f"interlock.frameworks._{framework.name}_reduce")


_on_devices: tuple[Callable[[object], DeviceArray | None], ...] = ()


def on_devices(take: Callable[[object], DeviceArray | None]) -> Callable[[], None]:
    """Let `take` answer for arrays that lie in the memory of a device, as in a simulation.

    Args:
        take: Given an array, queues a copy of its value on the array's stream and returns that; None if it is not one
            of its own.

    Returns:
        A function that ends it.
    """
    global _on_devices  # noqa: PLW0603 - one tuple, replaced whole
    _on_devices = (*_on_devices, take)

    def remove() -> None:
        global _on_devices  # noqa: PLW0603
        _on_devices = tuple(one for one in _on_devices if one is not take)

    return remove


def device_array_of(value: object) -> DeviceArray | None:
    """Return what `value` holds now, if it is an array in the memory of a device that is driven here."""
    return next((found for take in _on_devices if (found := take(value)) is not None), None)


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


def framework_for(to: Any) -> tuple[Framework, Any]:
    """Return the framework that batches are for, and the sharding that they are to have, if there is one.

    Args:
        to: A name, or a `jax.sharding.Sharding`.

    Raises:
        UsageError: There is no such framework.
    """
    if isinstance(to, str):
        return framework_named(to), None
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(to, jax.sharding.Sharding):
        return framework_named("jax"), to
    raise UsageError(f"no framework is called {to!r}", hint=f"use one of {', '.join(_TABLE)}, or a JAX sharding")


def _loaded() -> Iterator[Framework]:
    return (framework_named(name) for name in _TABLE if sys.modules.get(name) is not None)


_owner_of: dict[type, Framework] = {}
"""Of types that were met: whose an array is, its type says."""


def framework_of(value: object) -> Framework | None:
    """Return the framework that `value` is an array of; never imports one that the program did not."""
    found = _owner_of.get(type(value))
    if found is None:
        found = next((framework for framework in _loaded() if framework.owns(value)), None)
        if found is not None:
            _owner_of[type(value)] = found
    return found


def framework_running(model: object) -> Framework | None:
    """Return the framework whose arrays the callable `model` wants, or None if it does not say."""
    return next((framework for framework in _loaded() if framework.runs(model)), None)


def process_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, as `torch.distributed` or else JAX knows them.

    Only frameworks that the program has imported are asked; (0, 1) if none knows of other processes.
    """
    for name in ("torch", "jax"):
        if sys.modules.get(name) is not None:
            found: tuple[int, int] | None = importlib.import_module(_TABLE[name][0]).process_rank()
            if found is not None:
                return found
    return 0, 1
