"""Batches in CuPy's own memory pool.

CuPy has no `record_stream`. Its pool gives a freed block to the next allocation on the stream that it was allocated on,
here the copy stream, though kernels on the consumer's stream may still read it: the next batch would be copied over the
one that is in use. So what is handed out does not own the block. A small owner does; when the last array is gone it
leaves the block in a queue, and the block goes back to the pool only after the copy stream was made to wait for
whatever the consumer's stream held at a moment after that.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

import cupy

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from interlock._core._fence import Timeline
    from interlock._core._handover import Leaf
    from interlock.frameworks._own_memory import DriverDevice

_LARGEST_BYTES = {"f": 8, "c": 16}
"""NumPy's longer floats have no counterpart on a GPU."""
_PER_THREAD = 2
"""The handle that means another stream on each thread."""
_KNOWS_BFLOAT16 = 14
"""Version of CuPy."""


@final
class Returned:
    """Blocks of one device that arrays have let go of, and the streams that used them.

    It outlives receivers: a batch may live longer than its feed.

    Attributes:
        blocks: Appended to by finalisers, on any thread, at any time.
    """

    def __init__(self) -> None:
        self.blocks: deque[tuple[Any, Use | None]] = deque()

    def collect(self, device: DriverDevice, copying: Timeline) -> None:
        """Give blocks back to the pool; not those of another thread's own default stream, which only that one can name.

        Ordering: what is queued on `copying` from now on comes after what the streams that used the blocks hold now.
            Called on consumers' threads only: recorded by another thread, the event could end up in a graph that the
            consumer captures.
        """
        blocks: list[Any] = []
        others: list[Any] = []
        streams: dict[int, Any] = {}  # held until recorded: this may be all that keeps them
        while self.blocks:
            try:
                block, use = self.blocks.popleft()
            except IndexError:  # another consumer took it
                break
            if use is not None and use.stream.ptr == _PER_THREAD and use.thread is not threading.current_thread():
                others.append((block, use))
                continue
            blocks.append(block)
            if use is not None:
                streams[use.stream.ptr] = use.stream
        self.blocks.extend(others)
        for handle in streams:
            device.wait(copying, device.record(device.adopt(handle)))
        blocks.clear()


@final
@dataclass(frozen=True, slots=True)
class Use:
    """Who reads a block.

    Attributes:
        stream: The consumer's, held so that it lives as long as the block is in use.
        thread: The consumer's. Not its number, which the system gives to the next thread when this one has ended.
    """

    stream: Any
    thread: threading.Thread


@final
class _Owner:
    """What arrays over a block keep alive.

    Attributes:
        use: None while nobody uses the block.
    """

    __slots__ = ("_block", "_returned", "use")

    def __init__(self, block: Any, returned: Returned) -> None:
        self._block = block
        self._returned = returned.blocks
        self.use: Use | None = None

    def __del__(self) -> None:
        self._returned.append((self._block, self.use))


@final
class _Root:
    """Memory that arrays are made over.

    Attributes:
        pointer: Where it begins.
        owner: Set where the block was allocated on the copy stream.
    """

    __slots__ = ("owner", "pointer")

    def __init__(self, pointer: Any, owner: _Owner | None) -> None:
        self.pointer = pointer
        self.owner = owner


@final
class CupyAllocator:
    """As in `Allocator`: CuPy's current allocator, as a rule its memory pool.

    Args:
        device: Where batches go.
        stream: Its copy stream.
        returned: Blocks of that device that come back.
    """

    def __init__(self, device: DriverDevice, stream: Timeline, returned: Returned) -> None:
        self._device = device
        self._stream = stream
        self._returned = returned
        self._index = device.index
        with cupy.cuda.Device(self._index):
            self._copying = _external(device.handle(stream), self._index)

    def allocate(self, size_bytes: int, *, copying: bool) -> _Root:
        """As in `Allocator`.

        Raises:
            cupy.cuda.memory.OutOfMemoryError: As CuPy says it.
        """
        with cupy.cuda.Device(self._index):
            if not copying:
                return _Root(cupy.cuda.alloc(size_bytes), None)
            before = cupy.cuda.get_current_stream()
            self._copying.use()  # leaving a `with` block would bring back the stream of the one around it, not this one
            try:
                block = cupy.cuda.alloc(size_bytes)
            finally:
                before.use()
        owner = _Owner(block, self._returned)
        lent = cupy.cuda.UnownedMemory(block.ptr, size_bytes, owner, self._index)
        return _Root(cupy.cuda.MemoryPointer(lent, 0), owner)

    def address(self, root: _Root) -> int:
        """As in `Allocator`."""
        address: int = root.pointer.ptr
        return address

    def arrays(self, root: _Root, leaves: Sequence[Leaf]) -> list[Any]:
        """As in `Allocator`."""
        with cupy.cuda.Device(self._index):
            return [_view(root, leaf) for leaf in leaves]

    def current(self) -> tuple[int, object]:
        """As in `Allocator`."""
        stream = cupy.cuda.get_current_stream(self._index)
        return stream.ptr, stream

    def lend(self, root: _Root) -> None:
        """As in `Allocator`; blocks that came back meanwhile go to the pool."""
        if root.owner is not None:
            root.owner.use = Use(cupy.cuda.get_current_stream(self._index), threading.current_thread())
        self._returned.collect(self._device, self._stream)

    def close(self) -> None:
        """As in `Allocator`. What comes back later waits for the next receiver on the device."""
        self._returned.collect(self._device, self._stream)


def _view(root: _Root, leaf: Leaf) -> Any:
    if not _is_known(leaf.dtype):
        raise UsageError(f"CuPy has no array of {leaf.label}'s dtype {leaf.dtype}", hint="cast it in the source")
    return cupy.ndarray(leaf.shape, leaf.dtype, memptr=root.pointer + leaf.offset_bytes)


def _is_known(dtype: np.dtype[Any]) -> bool:
    if dtype.name == "bfloat16":
        return int(cupy.__version__.partition(".")[0]) >= _KNOWS_BFLOAT16
    return dtype.kind in "biufc" and dtype.itemsize <= _LARGEST_BYTES.get(dtype.kind, 8)


@final
class _Handle:
    """A stream of ours as other libraries take it."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@cache
def _external(handle: int, index: int) -> Any:
    """Return one of our streams as CuPy's; kept for ever, since CuPy 14 destroys the stream with the object.

    Source: `Stream.__del__` in CuPy 14's `cupy/cuda/stream.pyx`.
    """
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Handle(handle))
    return cupy.cuda.ExternalStream(handle, index)  # before CuPy 14
