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


Frame: TypeAlias = tuple[str, int, str]
"""A place in a program: file, line, function."""

Site: TypeAlias = tuple[Frame, ...]
"""A stack, innermost frame first; empty where nobody asked for it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which bytes of a region a strided view really touches.

    Attributes:
        itemsize: Bytes of an element.
        shape: Shape of the view.
        strides_bytes: Its strides, counted from the region's first byte; none is negative.
    """

    itemsize: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A range of bytes inside one allocation.

    Attributes:
        allocation: The allocation that the bytes belong to.
        offset_bytes: First byte, counted from the start of the allocation.
        size_bytes: Number of bytes.
        pattern: Which of them, where it is not all.
    """

    allocation: AllocationId
    offset_bytes: int
    size_bytes: int
    pattern: Pattern | None = None

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
    site: Site = ()


@dataclass(frozen=True, slots=True)
class Free:
    """`timeline` gave an allocation back: from here on, in its order, anybody may write the bytes.

    Attributes:
        issuer: The host timeline that queued it, where `timeline` is a stream; empty where the host itself acted.
    """

    timeline: str
    allocation: AllocationId
    issuer: str = ""
    site: Site = ()


@dataclass(frozen=True, slots=True)
class Access:
    """`timeline` read or wrote bytes; for a stream, at the point where the operation was queued.

    Attributes:
        operation: What did it, as a report names it: `copy`, `aten::add`, `numpy read`.
        issuer: The host timeline that queued it, where `timeline` is a stream; empty where the host itself acted.
        site: Where in the program.
        exact: Whether the bytes were touched for certain; False for memory that escaped to where nobody can look.
    """

    timeline: str
    region: Region
    mode: Literal["read", "write"]
    operation: str
    issuer: str = ""
    site: Site = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Record:
    """Everything queued on `timeline` so far lies before `tick`."""

    timeline: str
    tick: int
    site: Site = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """What is queued on `timeline` after this lies behind `points`; the host does not wait."""

    timeline: str
    points: Points
    site: Site = ()


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host thread `timeline` has seen `points` reached."""

    timeline: str
    points: Points
    site: Site = ()


Claim: TypeAlias = Literal["slot", "alias", "recycle", "snapshot", "donate"]
"""By what right a party holds bytes; see `Handoff`."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """Bytes changed hands: `lent` to a party, or `returned` with the proof that it is done.

    Attributes:
        party: Who holds them: a framework, `drain`, a checkpoint writer.
        sequence: Pairs a return with its loan; unique for `party`.
        claim: What the loan forbids until the return. `slot`: the ring's owner must not write. `alias`: a value shares
            memory with something mutable, nobody may write. `recycle`: a producer handed out its own output and must
            not write it. `snapshot`: a background reader holds a reference, nobody may write. `donate`: the party
            owns the bytes now, nobody else may read or write.
    """

    timeline: str
    region: Region
    what: Literal["lent", "returned"]
    party: str
    sequence: int
    claim: Claim = "slot"
    site: Site = ()


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
