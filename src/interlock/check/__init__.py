"""Check: find the hazards of any program, on a machine without a GPU.

`_hazards` folds frozen events into hazards (with `_clocks` and `_shadow`); `_simulate` and `_watch` make a program
emit them; `_session` is one program under one schedule, `_program` a script under all of them; `_report` renders what
was found.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.check._model import Hazard, Report
    from interlock.check._program import check_program
    from interlock.check._session import HazardError, Session, current_session, simulate

__all__ = ["Hazard", "HazardError", "Report", "Session", "check_program", "current_session", "simulate"]

_HOME = {
    "Hazard": "_model",
    "HazardError": "_session",
    "Report": "_model",
    "Session": "_session",
    "check_program": "_program",
    "current_session": "_session",
    "simulate": "_session",
}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
