"""`prefetch`: the batches of any loader, handed over under leases."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, final

import numpy as np

from interlock import _waiting
from interlock._core._handover import Part, Placement, StreamDevice
from interlock._core._spans import Span, host_track, report, traced
from interlock._core._tree import flatten
from interlock.errors import UsageError
from interlock.feed._arrivals import Arrival, arrival, unlisted
from interlock.feed._feed import open_target
from interlock.feed._iteration import Passes
from interlock.feed._layout import Layout, as_numbers
from interlock.feed._samples import is_array
from interlock.feed._work import Work
from interlock.frameworks import framework_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device
    from interlock.feed._crew import Crew
    from interlock.feed._iteration import BatchIterator
    from interlock.feed._statistics import FeedStatistics
    from interlock.frameworks._own_memory import DriverDevice

    _Laid: TypeAlias = tuple[Layout, list[Any], dict[int, Any]]


@final
class BatchReader:
    """Whole batches in the order in which an iterator gives them; each may have shapes of its own.

    Args:
        iterator: Gives them.
        device: Where they go, if it can take arrays that are on a device, or in pinned memory, by itself.
        timeout_s: How long a copy out of the loader's memory may take.
        state: Returns how far the loader is; asked after each batch, on the thread that is in the loader.

    Attributes:
        states: How far the loader was when it had given a batch, by number; until somebody takes it out.
        final: How far it was when it had ended; None before.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        device: DriverDevice | None = None,
        timeout_s: float = 300.0,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._iterator = iterator
        self._state = state
        self.states: dict[int, Any] = {}
        self.final: Any = None
        self._device = device
        self._timeout_s = timeout_s
        self._ended = False
        self.stopped = False
        self._largest_bytes = 1
        self._peeked: list[_Laid] = []
        self._lent: Work | None = None

    @property
    def slot_bytes(self) -> int:
        """As in `Reader`: the largest batch so far."""
        return self._largest_bytes

    def plan(self, number: int) -> Work | None:
        """As in `Reader`. Blocks: for the first batch, which says how large a slot is."""
        if number == 0:
            try:
                first = self._next(number)
            except StopIteration:
                self._ended = True
            else:
                laid = self._lay_out(first)
                self._largest_bytes = laid[0].size_bytes
                self._peeked.append(laid)
        return None if self._ended else Work(number, number, 1, units=1)

    def run(self, work: Work, unit: int, memory: Callable[[int], SlotMemory]) -> None:  # noqa: ARG002 - one piece
        """As in `Reader`. The bytes are copied before the loader is asked for more, so it may recycle its buffers.

        Blocks: until the device has copied what it takes out of the loader's memory by itself.
        """
        self.settle()
        began = time.perf_counter()
        peeked, self._peeked = self._peeked, []
        try:
            batch = None if peeked else self._next(work.number)
        except StopIteration:
            self._ended = True
            work.void = True
            return
        fetched = time.perf_counter()
        # The first batch was laid out where it was made: its producer's stream is the current one of that thread.
        layout, arrays, work.extras = peeked[0] if peeked else self._lay_out(batch)
        work.layout = layout
        self._largest_bytes = max(self._largest_bytes, layout.size_bytes)
        if any(isinstance(array, Arrival) for array in arrays):
            self._lent = work
            work.parts = _parts(work, arrays, memory)
        else:
            for view, array in zip(work.views(memory), arrays, strict=True):
                np.copyto(view, array, casting="no")
        work.rows = arrays[0].shape[0]
        work.nbytes = sum(leaf.size_bytes for leaf in layout.leaves)
        work.count(fetched - began, time.perf_counter() - fetched, [])

    def _next(self, number: int) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.final = self._state()
            raise
        self.states[number] = self._state()
        return batch

    def settle(self) -> None:
        """Wait until the batch before is copied, if it is taken out of the loader's memory by the device. Blocks."""
        work, self._lent = self._lent, None
        if work is None or work.cause is not None:
            return
        start_ns = time.perf_counter_ns()
        what = f"the copy of batch {work.number} out of the loader's memory"
        _waiting.wait(work.ready, timeout_s=self._timeout_s, what=what)
        work.parts = ()
        if traced():
            end_ns = time.perf_counter_ns()
            report(Span(host_track(), "wait for copy", start_ns, end_ns, work.number, subject=work.subject))

    def finish(self, work: Work, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`."""

    def stop(self) -> None:
        """As in `Reader`. The loader is let go of."""
        self._ended = self.stopped = True
        self._iterator = iter(())
        self._peeked = []

    def _lay_out(self, batch: Any) -> _Laid:
        """Return where the arrays of a batch go, the arrays, and what is no array by leaf position."""
        values, structure = flatten(batch)
        names = structure.names()
        arrays: list[tuple[str, Any]] = []
        extras: dict[int, Any] = {}
        for position, (name, value) in enumerate(zip(names, values, strict=True)):
            array = self._array(value, name)
            if array is None:
                extras[position] = value
            else:
                arrays.append((name, array))
        if not arrays:
            raise UsageError("a batch of the loader holds no array", hint="prefetch hands over arrays and tensors")
        layout = Layout.pack(structure, [(name, array.shape, array.dtype) for name, array in arrays])
        return layout, [array for _, array in arrays], extras

    def _array(self, value: Any, name: str) -> Any:
        """Return what a leaf of a batch is copied from: an `Arrival` or a NumPy array; None if it is no array."""
        value = unlisted(value)
        if self._device is not None:
            arrived = arrival(value, f"leaf {name!r}" if name else "the batch", self._device)
            if arrived is not None:
                return arrived if arrived.shape else None
        on_device = hasattr(value, "__cuda_array_interface__")  # and none may be taken: refused by name
        return as_numbers(value, name) if on_device or is_array(value) else None


def _parts(work: Work, arrays: list[Any], memory: Callable[[int], SlotMemory]) -> list[Part]:
    """Write what the host must copy into the slot, and return where every leaf is."""
    assert work.layout is not None  # noqa: S101 - set by the caller
    parts: list[Part] = []
    for position, (leaf, array) in enumerate(zip(work.layout.leaves, arrays, strict=True)):
        if isinstance(array, Arrival):
            source = array.memory
        else:
            np.copyto(work.views(memory)[position], array, casting="no")
            staging = memory(work.layout.size_bytes).staging
            source = staging.slice(leaf.offset_bytes, leaf.size_bytes) if leaf.size_bytes else None
        if source is not None:
            parts.append(Part(leaf.offset_bytes, source))
    return parts


class SupportsState(Protocol):
    """A loader that can say how far it is, and go on from there."""

    def state_dict(self) -> Any:
        """Return a snapshot."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Begin the next iteration where the snapshot was taken."""
        ...


@final
class Prefetch:
    """What `prefetch` returns. Each iteration of it is one of the loader, ahead of the consumer."""

    def __init__(
        self, loader: Iterable[Any], passes: Passes, depth: int, device: DriverDevice | None, timeout_s: float
    ) -> None:
        self._loader = loader
        self._passes = passes
        self._depth = depth
        self._device = device
        self._timeout_s = timeout_s
        self._last: tuple[Crew | None, BatchReader] | None = None
        self._states = cast("SupportsState", loader) if hasattr(loader, "state_dict") else None
        self._state: Callable[[], Any] | None = None
        self._running: weakref.ref[BatchIterator] | None = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # a loader without a length raises its own TypeError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BatchIterator:
        self._settle()
        batches = _batches(self._loader)
        if self._states is None:
            reader = BatchReader(batches, self._device, self._timeout_s)
        else:
            reader = BatchReader(batches, self._device, self._timeout_s, self._states.state_dict)
            self._delay(self._states.state_dict())

        def present(work: Work, batch: Any) -> Any:
            self._delay(reader.states.pop(work.number))
            return batch

        iterator = self._passes.start(
            reader,
            workers=1,
            depth=self._depth,
            present=present,
            exhausted=lambda: self._delay(reader.final),
        )
        self._last = (iterator.pipeline.crew, reader)
        self._running = weakref.ref(iterator)
        return iterator

    def _delay(self, state: Any) -> None:
        self._state = lambda: state

    def state_dict(self) -> Any:
        """Return the loader's state as it was when it had given the batch that the consumer was given last.

        What was made ahead does not count. The loader's `state_dict` is called after each batch, on the thread that is
        in the loader; it must return a snapshot.

        Raises:
            UsageError: The loader has no state.
        """
        loader = self._stateful()
        return loader.state_dict() if self._state is None else self._state()

    def load_state_dict(self, state: Any) -> None:
        """Hand a state to the loader; the next iteration goes on from it. One that still runs is ended first.

        Blocks: until the thread of that one is out of the loader.

        Raises:
            UsageError: The loader has no state.
        """
        loader = self._stateful()
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()
        self._settle()
        loader.load_state_dict(state)
        self._state = None

    def _stateful(self) -> SupportsState:
        if self._states is None:
            raise UsageError(
                f"a {type(self._loader).__name__} has no state_dict()",
                hint="use a Feed, or a loader that has one, as torchdata's StatefulDataLoader",
            )
        return self._states

    def _settle(self) -> None:
        """Wait for a pass that was left early: its thread may be in the loader, its copies in the loader's memory."""
        if self._last is None:
            return
        crew, reader = self._last
        if crew is not None and reader.stopped:
            crew.join(time.monotonic() + self._timeout_s)
            reader.settle()

    def statistics(self) -> FeedStatistics:
        """Return counts since it was made; see `FeedStatistics`. `samples` counts rows of the first array."""
        return self._passes.statistics()

    def close(self) -> None:
        """End all iterations. Batches that were handed over stay valid."""
        self._passes.close()


def _batches(loader: Any) -> Iterator[Any]:
    """Iterate over a loader; over a pipeline of DALI until its epoch ends."""
    if hasattr(loader, "__iter__") or not hasattr(loader, "share_outputs"):
        return iter(loader)
    return _epoch(loader)


def _epoch(pipeline: Any) -> Iterator[Any]:
    while True:
        try:
            outputs = pipeline.run()
        except StopIteration:
            pipeline.reset()
            return
        yield outputs


def prefetch(
    loader: Iterable[Any],
    *,
    to: Any,
    device: str | Device = "auto",
    depth: int = 2,
    zero_copy: bool = False,
    fixed: bool = False,
    budget_bytes: int = 1 << 30,
    timeout_s: float = 300.0,
    verify: bool = False,
) -> Prefetch:
    """Hand over the batches of any loader as a framework's arrays, made ahead by one thread.

    Args:
        loader: An iterable of batches, as a torch `DataLoader`, or a pipeline of DALI: arrays or tensors, or dicts,
            tuples and lists of them. What is no array (strings, numbers) is passed through. Batches may differ in
            shape. Arrays on a CUDA device (of torch, CuPy, JAX, DALI, or with `__cuda_array_interface__`) are taken
            where batches go to one.
        to: As in `Feed`.
        device: As in `Feed`.
        depth: As in `Feed`.
        zero_copy: As in `Feed`.
        fixed: As in `Feed`.
        budget_bytes: As in `Feed`.
        timeout_s: As in `Feed`.
        verify: As in `Feed`.

    Returns:
        An iterable, with `statistics()` and `close()`; with `state_dict()` and `load_state_dict()` if the loader has
        them. Its batches may be kept as long as you like.

    Raises:
        UsageError: An argument that cannot be meant.

    Ordering:
        A batch is copied before the loader is asked for the next, so a loader may recycle its buffers. An array on a
        device is copied after its producer's work: the loader's thread's current stream of its framework. The thread
        that runs the loader waits until that copy is done; the consumer does not.

    Copies:
        Each batch once, into a slot; what is on a device or in pinned memory not into a slot, but straight to the
        consumer's memory.

    Example:
        >>> import numpy as np
        >>> loader = [np.full(2, i) for i in range(3)]
        >>> [batch.tolist() for batch in prefetch(loader, to="numpy")]
        [[0, 0], [1, 1], [2, 2]]
    """
    if depth < 1:
        raise UsageError(f"depth is {depth}", hint="give at least 1")
    framework, sharding = framework_for(to)
    target = open_target(device, framework, sharding)
    placement = Placement(zero_copy, fixed, sharding)
    passes = Passes(target, framework, budget_bytes, timeout_s, placement, verify=verify)
    return Prefetch(loader, passes, depth, target if isinstance(target, StreamDevice) else None, timeout_s)
