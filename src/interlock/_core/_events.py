"""The vocabulary of what happens to memory, and those who listen.

Feed, drain and devices *emit* these events; a checker folds them into hazards. The events are frozen and hold plain
values only, never the user's data. Emitting costs one truth test while nobody listens.

Source: the idea of one vocabulary and a pure fold over it is that of PyTorch's CUDA sanitizer and of loom.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

AllocationId = NewType("AllocationId", int)
"""Names one allocation for the life of the process; never given out twice, whatever the address."""

_allocation_ids = itertools.count(1)


def new_allocation_id() -> AllocationId:
    """Return an id that no other allocation of this process has."""
    return AllocationId(next(_allocation_ids))


@dataclass(frozen=True, slots=True)
class Region:
    """A range of bytes inside one allocation.

    Attributes:
        allocation: The allocation that the bytes belong to.
        offset_bytes: First byte, counted from the start of the allocation.
        size_bytes: Number of bytes.
    """

    allocation: AllocationId
    offset_bytes: int
    size_bytes: int

    def overlaps(self, other: Region) -> bool:
        """Tell whether the two share a byte."""
        start = max(self.offset_bytes, other.offset_bytes)
        end = min(self.offset_bytes + self.size_bytes, other.offset_bytes + other.size_bytes)
        return self.allocation == other.allocation and start < end


Points: TypeAlias = tuple[tuple[str, int], ...]
"""What a fence says in plain values: (timeline name, tick), each once."""


@dataclass(frozen=True, slots=True)
class Alloc:
    """`timeline` brought an allocation into being."""

    timeline: str
    allocation: AllocationId
    size_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Free:
    """`timeline` gave an allocation back."""

    timeline: str
    allocation: AllocationId


@dataclass(frozen=True, slots=True)
class Access:
    """`timeline` read or wrote bytes; for a stream, at the point where the operation was queued."""

    timeline: str
    region: Region
    mode: Literal["read", "write"]
    operation: str


@dataclass(frozen=True, slots=True)
class Record:
    """Everything queued on `timeline` so far lies before `tick`."""

    timeline: str
    tick: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What is queued on `timeline` after this lies behind `points`; the host does not wait."""

    timeline: str
    points: Points


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host thread `timeline` has seen `points` reached."""

    timeline: str
    points: Points


@dataclass(frozen=True, slots=True)
class Handoff:
    """A slot changed hands: `lent` to a consumer, or `returned` with the proof that it is done."""

    timeline: str
    region: Region
    what: Literal["lent", "returned"]
    party: str
    sequence: int


Event: TypeAlias = Alloc | Free | Access | Record | Wait | HostWait | Handoff


_observers: tuple[Callable[[Event], None], ...] = ()
_observers_lock = threading.Lock()


def observe(observer: Callable[[Event], None]) -> Callable[[], None]:
    """Call `observer` with every event from now on.

    Args:
        observer: Called on the thread that emits, in that thread's order. It must not block. One that raises is removed
            and reported as a `RuntimeWarning`; it never breaks the program.

    Returns:
        A function that removes the observer; calling it twice does nothing.
    """
    global _observers  # noqa: PLW0603 - one tuple, replaced whole, so that emitting takes no lock
    with _observers_lock:
        _observers = (*_observers, observer)

    def remove() -> None:
        global _observers  # noqa: PLW0603
        with _observers_lock:
            _observers = tuple(one for one in _observers if one is not observer)

    return remove


def observed() -> bool:
    """Tell whether anybody listens, so that hot paths need not build events for nobody."""
    return bool(_observers)


def emit(event: Event) -> None:
    """Hand `event` to every observer."""
    for observer in _observers:
        try:
            observer(event)
        except Exception as error:  # noqa: BLE001 - an observer never breaks the program
            _drop(observer, error)


def _drop(observer: Callable[[Event], None], error: Exception) -> None:
    global _observers  # noqa: PLW0603
    with _observers_lock:
        _observers = tuple(one for one in _observers if one is not observer)
    warnings.warn(f"an Interlock observer was removed: it raised {error!r}", RuntimeWarning, stacklevel=3)


def host_timeline() -> str:
    """Return the name of the timeline that the calling thread is."""
    return f"host:{threading.get_ident()}"
