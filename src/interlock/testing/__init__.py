"""Suites that say what an implementation must do: inherit from one, give it your object, and run pytest.

`DeviceConformance`, `FrameworkConformance` and `SinkConformance` test one implementation of a protocol each;
`RingMachine` plays with a ring; they need pytest and hypothesis. `gate` holds a stream, so that a race of microseconds
is certain. Each is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.testing._devices import DeviceConformance
    from interlock.testing._frameworks import FrameworkConformance
    from interlock.testing._gate import Gate, gate
    from interlock.testing._model import RingMachine
    from interlock.testing._sinks import SinkConformance

__all__ = ["DeviceConformance", "FrameworkConformance", "Gate", "RingMachine", "SinkConformance", "gate"]

_HOMES = {
    "DeviceConformance": "_devices",
    "FrameworkConformance": "_frameworks",
    "Gate": "_gate",
    "RingMachine": "_model",
    "SinkConformance": "_sinks",
    "gate": "_gate",
}


def __getattr__(name: str) -> Any:
    """Import the module that a public name lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
