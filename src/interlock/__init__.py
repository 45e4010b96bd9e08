"""Interlock hands tensors between host, accelerator and framework: never read early, never overwritten late.

`Feed` and `prefetch` bring batches to JAX, PyTorch or NumPy. `Drain` takes outputs to a committed dataset. `trace`
records what they do. Importing this package only defines names; each is loaded when it is first asked for, NumPy with
it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.drain import Drain, Ticket
    from interlock.errors import InterlockError
    from interlock.feed import Feed, Offsets, Padded, SampleInfo, Shard, Stage, prefetch
    from interlock.tracing import trace

__all__ = [
    "Drain",
    "Feed",
    "InterlockError",
    "Offsets",
    "Padded",
    "SampleInfo",
    "Shard",
    "Stage",
    "Ticket",
    "prefetch",
    "trace",
]

_HOME = {
    "Drain": "interlock.drain",
    "Feed": "interlock.feed",
    "InterlockError": "interlock.errors",
    "Offsets": "interlock.feed",
    "Padded": "interlock.feed",
    "SampleInfo": "interlock.feed",
    "Shard": "interlock.feed",
    "Stage": "interlock.feed",
    "Ticket": "interlock.drain",
    "prefetch": "interlock.feed",
    "trace": "interlock.tracing",
}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _HOME:
        raise AttributeError(f"module 'interlock' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
