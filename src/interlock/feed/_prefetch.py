"""`prefetch`: the batches of any loader, handed over under leases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock._core._tree import flatten
from interlock.errors import UsageError
from interlock.feed._feed import open_target
from interlock.feed._iteration import Passes
from interlock.feed._layout import Layout, as_numbers
from interlock.feed._samples import is_array
from interlock.feed._work import Work
from interlock.frameworks import framework_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device
    from interlock.feed._iteration import BatchIterator
    from interlock.feed._statistics import FeedStatistics


@final
class BatchReader:
    """Whole batches in the order in which an iterator gives them; each may have shapes of its own."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._ended = False
        self._largest_bytes = 1
        self._peeked: list[Any] = []

    @property
    def slot_bytes(self) -> int:
        """As in `Reader`: the largest batch so far."""
        return self._largest_bytes

    def plan(self, number: int) -> Work | None:
        """As in `Reader`. Blocks: for the first batch, which says how large a slot is."""
        if number == 0:
            try:
                first = next(self._iterator)
            except StopIteration:
                self._ended = True
            else:
                self._largest_bytes = _lay_out(first)[0].size_bytes
                self._peeked.append(first)
        return None if self._ended else Work(number, number, 1, units=1)

    def run(self, work: Work, unit: int, memory: Callable[[int], SlotMemory]) -> None:  # noqa: ARG002 - one piece
        """As in `Reader`. The bytes are copied before the loader is asked for more, so it may recycle its buffers."""
        began = time.perf_counter()
        try:
            batch = self._peeked.pop() if self._peeked else next(self._iterator)
        except StopIteration:
            self._ended = True
            work.void = True
            return
        fetched = time.perf_counter()
        layout, arrays, work.extras = _lay_out(batch)
        work.layout = layout
        self._largest_bytes = max(self._largest_bytes, layout.size_bytes)
        for view, array in zip(work.views(memory), arrays, strict=True):
            np.copyto(view, array, casting="no")
        work.rows = len(arrays[0])
        work.nbytes = sum(array.nbytes for array in arrays)
        work.count(fetched - began, time.perf_counter() - fetched, [])

    def finish(self, work: Work, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`."""

    def stop(self) -> None:
        """As in `Reader`."""
        self._ended = True


def _lay_out(batch: Any) -> tuple[Layout, list[Any], dict[int, Any]]:
    """Return where the arrays of a batch go, the arrays, and what is no array by leaf position."""
    values, structure = flatten(batch)
    names = structure.names()
    arrays: list[tuple[str, Any]] = []
    extras: dict[int, Any] = {}
    for position, (name, value) in enumerate(zip(names, values, strict=True)):
        if is_array(value):
            arrays.append((name, as_numbers(value, name)))
        else:
            extras[position] = value
    if not arrays:
        raise UsageError("a batch of the loader holds no array", hint="prefetch hands over arrays and CPU tensors")
    layout = Layout.pack(structure, [(name, array.shape, array.dtype) for name, array in arrays])
    return layout, [array for _, array in arrays], extras


@final
class Prefetch:
    """What `prefetch` returns. Each iteration of it is one of the loader, ahead of the consumer."""

    def __init__(self, loader: Iterable[Any], passes: Passes, depth: int) -> None:
        self._loader = loader
        self._passes = passes
        self._depth = depth

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # a loader without a length raises its own TypeError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BatchIterator:
        return self._passes.start(
            BatchReader(iter(self._loader)),
            workers=1,
            depth=self._depth,
            present=lambda _, batch: batch,
            failed=lambda _: None,
        )

    def statistics(self) -> FeedStatistics:
        """Return counts since it was made; see `FeedStatistics`. `samples` counts rows of the first array."""
        return self._passes.statistics()

    def close(self) -> None:
        """End all iterations. Batches that were handed over stay valid."""
        self._passes.close()


def prefetch(
    loader: Iterable[Any],
    *,
    to: Literal["numpy", "torch", "jax"],
    device: str | Device = "auto",
    depth: int = 2,
    budget_bytes: int = 1 << 30,
    timeout_s: float = 300.0,
) -> Prefetch:
    """Hand over the batches of any loader as a framework's arrays, made ahead by one thread.

    Args:
        loader: An iterable of batches, as a torch `DataLoader`: arrays or CPU tensors, or dicts, tuples and lists of
            them. What is no array (strings, numbers) is passed through. Batches may differ in shape.
        to: As in `Feed`.
        device: As in `Feed`.
        depth: As in `Feed`.
        budget_bytes: As in `Feed`.
        timeout_s: As in `Feed`.

    Returns:
        An iterable, with `statistics()` and `close()`. Its batches may be kept as long as you like.

    Raises:
        UsageError: An argument that cannot be meant.

    Ordering: a batch is copied before the loader is asked for the next, so a loader may recycle its buffers.
    Copies: each batch once, into a slot.

    Example:
        >>> import numpy as np
        >>> loader = [np.full(2, i) for i in range(3)]
        >>> [batch.tolist() for batch in prefetch(loader, to="numpy")]
        [[0, 0], [1, 1], [2, 2]]
    """
    if depth < 1:
        raise UsageError(f"depth is {depth}", hint="give at least 1")
    framework = framework_named(to)
    return Prefetch(loader, Passes(open_target(device, framework), framework, budget_bytes, timeout_s), depth)
