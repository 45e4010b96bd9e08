"""The loan: what a consumer's arrays keep alive, so that its end is known."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._protocols import Memory


@final
class Loan:
    """Root exporter of lent host memory; every view of the memory keeps it alive, and its end is reported once.

    NumPy collapses chains of views to the root, so a finaliser on any array that we hand out could fire while a crop
    of it lives. The root's base is this object, which nothing collapses: it goes when the last view, tensor or
    asynchronous reader has let go.

    Args:
        memory: What is lent.

    Source: NumPy's array interface, version 3.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (memory.size_bytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
        }

    def on_end(self, ended: Callable[[Any], object]) -> weakref.ref[Loan]:
        """Return a reference that calls `ended` with itself when the loan is over.

        Args:
            ended: Called once, on any thread, at any time (a deleter may run on a framework's thread): it must append
                to a queue and do nothing else.

        Returns:
            The reference. The caller keeps it: if it goes first, `ended` is never called.
        """
        return weakref.ref(self, ended)
