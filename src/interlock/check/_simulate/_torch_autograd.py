"""Backward runs each node on the stream of its forward operation, as CUDA does.

A node's sequence number says when it was made. Each thread keeps the numbers at which its current stream changed, so
the stream of a node is found without any cost in the forward pass.

Source: PyTorch, "Stream semantics of backward passes".
"""

from __future__ import annotations

import bisect
import threading
from typing import TYPE_CHECKING, Any, final

import torch

from interlock.check._simulate._torch_streams import order

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._engine import Engine

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr  # noqa: SLF001
_node: Callable[[], Any] = torch._C._current_autograd_node  # noqa: SLF001
_MOST_CHANGES = 1 << 16
_LEAF = 1 << 62
"""Nodes that accumulate into leaves have the highest number of all."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.streams: list[OperationQueue] = []
        self.depth = 0
        self.used: set[OperationQueue] = set()
        self.last: OperationQueue | None = None


@final
class Backward:
    """Which stream the backward of each operation runs on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = _Thread()

    def is_running(self) -> bool:
        """Tell whether the calling thread is inside a backward pass."""
        return self._thread.depth > 0

    def changed(self, before: OperationQueue, after: OperationQueue) -> None:
        """Note that the calling thread's stream changes now."""
        thread = self._thread
        if thread.depth:
            return
        number = _sequence_number()
        if not thread.numbers:
            thread.numbers.append(0)
            thread.streams.append(before)
        if thread.numbers[-1] == number:
            thread.streams[-1] = after
        else:
            thread.numbers.append(number)
            thread.streams.append(after)
            if len(thread.numbers) > _MOST_CHANGES:  # graphs that old are gone
                del thread.numbers[: _MOST_CHANGES // 2], thread.streams[: _MOST_CHANGES // 2]

    def follow(self) -> None:
        """Go to the stream of the node that runs now, behind what this backward pass did elsewhere."""
        thread = self._thread
        if not thread.numbers:
            return
        node = _node()
        if node is None:
            return
        number = node._sequence_nr()  # noqa: SLF001 - the only name that PyTorch has for it
        stream = thread.last if number >= _LEAF else self._stream_of(number)
        if stream is None or stream is thread.last:
            return
        for other in thread.used:
            if other is not stream:
                order(self.engine, stream, self.engine.record(other))
        thread.used.add(stream)
        thread.last = stream
        self.engine.switch(stream)

    def _stream_of(self, number: int) -> OperationQueue:
        thread = self._thread
        return thread.streams[max(0, bisect.bisect_right(thread.numbers, number) - 1)]

    def run(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a backward pass; the caller's stream comes after it."""
        thread, engine = self._thread, self.engine
        caller = engine.stream
        outer = (thread.used, thread.last)
        thread.used, thread.last = {caller}, caller
        thread.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            thread.depth -= 1
            engine.switch(caller)
            for other in thread.used:
                if other is not caller:
                    order(engine, caller, engine.record(other))
            thread.used, thread.last = outer
