"""Hear of it when somebody takes a type's memory by the buffer protocol, as `np.asarray(jax_array)` does.

That conversion waits for the array, so it is an edge like any other wait; and no Python method is called for it. So the
slot of the type is replaced, for the time of a session, by a function that calls the original.

Source: `PyTypeObject` and `PyBufferProcs` in CPython's `Include/cpython/object.h`; the layout is checked before use.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_BASICSIZE = 4 * _POINTER
_AS_BUFFER = 20 * _POINTER
_FAILED = -1

_GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


@contextmanager
def heard(kind: type, hear: Callable[[Any], None]) -> Iterator[bool]:
    """Call `hear` with each object of `kind` whose buffer was taken, until the block is left.

    Returns:
        Whether this interpreter's types look as expected; if not, nothing is changed.
    """
    slot = _slot(kind)
    if slot is None:
        yield False
        return
    address = slot.value or 0
    original = _GetBuffer(address)

    def get_buffer(owner: Any, view: int, flags: int) -> int:
        try:
            result = int(original(owner, view, flags))
        except Exception:  # noqa: BLE001 - what went wrong cannot cross a C callback; callers try another protocol
            return _FAILED
        hear(owner)
        return result

    replacement = _GetBuffer(get_buffer)
    slot.value = ctypes.cast(replacement, ctypes.c_void_p).value
    try:
        yield True
    finally:
        slot.value = address


def _slot(kind: type) -> ctypes.c_void_p | None:
    """Return the place of the type's `bf_getbuffer`, or None if it has none or is laid out otherwise."""
    basicsize = ctypes.c_ssize_t.from_address(id(kind) + _BASICSIZE).value
    if basicsize != kind.__basicsize__:
        return None
    procedures = ctypes.c_void_p.from_address(id(kind) + _AS_BUFFER).value
    if not procedures:
        return None
    slot = ctypes.c_void_p.from_address(procedures)
    return slot if slot.value else None
