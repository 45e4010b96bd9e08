"""Producers that write their output again, told from programs that change what is theirs.

A producer is a generator, or a method of an object, that refers to the changed memory itself. What it handed out is
held for somebody if anything but a variable that is overwritten before it is read again refers to it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from interlock.check._sites import is_library
from interlock.check._watch._liveness import live_names
from interlock.check._watch._memory import leaves, span_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from interlock.check._watch._memory import Memory

GENERATOR = 0x20 | 0x80 | 0x200
"""Flags of code objects: generator, coroutine, asynchronous generator."""
_OPTIMIZED = 0x1
"""Flag of code objects whose variables do not live in a dict."""
_OUTWARDS = 3
"""Frames of the program that are looked at: a producer may call a helper to fill its buffer."""


def is_producer(
    frame: FrameType | None, memory: Memory, *, serial_of: Callable[[FrameType], int], lent_in: int
) -> bool:
    """Tell whether the line that changed `memory` belongs to a producer of it.

    Args:
        frame: The frame of the line.
        memory: What changed.
        serial_of: Number of the call that a frame is.
        lent_in: Number of the call that handed the memory over: a method that changes what it handed over itself, in
            the same call, is no producer.
    """
    found = producer_of(frame, memory)
    if found is None:
        return False
    is_generator = bool(found.f_code.co_flags & GENERATOR)
    return is_generator or not lent_in or serial_of(found) != lent_in


def producer_of(frame: FrameType | None, memory: Memory) -> FrameType | None:
    """Return the frame of the producer whose line, or whose helper's line, `frame` runs; None if there is none."""
    for _ in range(_OUTWARDS):
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        if any(refers(values, memory) for values in possessions(frame)):
            return frame
        frame = frame.f_back
    return None


def possessions(frame: FrameType) -> list[dict[str, Any]]:
    """Return the variables of a generator, and the attributes of the object whose method a frame runs."""
    found = [frame.f_locals] if frame.f_code.co_flags & GENERATOR else []
    code = frame.f_code
    if code.co_argcount and code.co_varnames[0] == "self":
        attributes = getattr(frame.f_locals.get("self"), "__dict__", None)
        if attributes is not None:
            found.append(attributes)
    return found


def refers(values: Any, memory: Memory) -> bool:
    """Tell whether an array or a tensor among `values` touches `memory`."""
    return any(span is not None and memory.span.touches(span) for span in map(span_of, leaves(values)))


def is_shared_by_owner(frame: FrameType | None, memory: Memory) -> bool:
    """Tell whether the producer keeps a tensor over `memory` itself: then two names for it are its purpose."""
    found = producer_of(frame, memory)
    if found is None:
        return False
    tensors = [one for values in possessions(found) for one in leaves(values) if type(one).__module__ != "numpy"]
    return refers([one for one in tensors if not isinstance(one, (bytearray, memoryview))], memory)


def is_held(memory: Memory, kind: type, frame: FrameType | None) -> bool:
    """Tell whether a variable that will be read leads to an array of `kind` over `memory`, outside its producer."""
    producer = producer_of(frame, memory)
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as in `is_wanted`
    while found is not None:
        if found is not producer and not is_library(found.f_code.co_filename):
            live = live_names(found)
            values = [one for name, one in found.f_locals.items() if name in live]
            if refers(list(leaves(values, lambda one: isinstance(one, kind))), memory):
                return True
        found = found.f_back
    return False


def is_wanted(value: Any, held_by_caller: int) -> bool:
    """Tell whether anything refers to `value` but variables of running frames that are not read again.

    Args:
        value: What was handed out.
        held_by_caller: References that the caller of this function has.
    """
    dead = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses, without its cost
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            names = [name for name, one in frame.f_locals.items() if one is value]
            if not live_names(frame).isdisjoint(names):
                return True
            dead += len(names) * _references_of_a_variable(frame)
        frame = frame.f_back
    return sys.getrefcount(value) - held_by_caller - 2 > dead  # the parameter, and the one of getrefcount


def _references_of_a_variable(frame: FrameType) -> int:
    """Return 2 where a function's frame keeps a second reference in the dict that a tracer has made it build."""
    is_function = frame.f_code.co_flags & _OPTIMIZED
    return 2 if is_function and sys.version_info < (3, 13) else 1
