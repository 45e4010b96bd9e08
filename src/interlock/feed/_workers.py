"""What an argument `workers` means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from interlock.errors import UsageError

WorkerKind: TypeAlias = Literal["threads", "processes", "inline", "auto"]

_MOST_BY_DEFAULT = 8
_KINDS: tuple[WorkerKind, ...] = ("threads", "processes", "auto")
_HINT = "use a number of threads, 'threads:4', 'processes:4', 'auto', or 0 or 'inline' to read on the consumer's thread"


@final
@dataclass(frozen=True, slots=True)
class Workers:
    """Who reads samples.

    Attributes:
        kind: Threads, processes, the consumer's own thread, or whichever of them measures best.
        count: How many; 0 for the consumer's own thread.
    """

    kind: WorkerKind
    count: int

    def __str__(self) -> str:
        return self.kind if self.kind == "inline" else f"{self.kind}:{self.count}"


def workers_of(value: Any) -> Workers:
    """Return what an argument `workers` means.

    Raises:
        UsageError: It cannot be meant.
    """
    if value is None:
        return Workers("threads", _default_count())
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise UsageError(f"workers is {value}", hint="give 0 or more")
        return Workers("threads", value) if value else Workers("inline", 0)
    if not isinstance(value, str):
        raise UsageError(f"workers is {value!r}", hint=_HINT)
    kind, colon, number = value.partition(":")
    if value == "inline":
        return Workers("inline", 0)
    known = next((one for one in _KINDS if one == kind), None)
    if known is None:
        raise UsageError(f"workers is {value!r}", hint=_HINT)
    if not colon:
        return Workers(known, _default_count())
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"workers is {value!r}, and {number!r} is no number", hint=f"give one, as in '{kind}:4'")
    if int(number) < 1:
        raise UsageError(f"workers is {value!r}", hint=f"give at least 1, as in '{kind}:1', or 'inline'")
    return Workers(known, int(number))


def _default_count() -> int:
    """One per processor, at most 8."""
    return min(_MOST_BY_DEFAULT, os.cpu_count() or 1)
