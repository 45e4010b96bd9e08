"""Streams and events as programs see them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import torch

from interlock._core._fence import Fence
from interlock.check._simulate._torch_tensor import CUDA

if TYPE_CHECKING:
    from types import TracebackType

    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._engine import Engine

POOL = 32
"""Streams that PyTorch makes before it hands out old ones again."""
_FIRST_HANDLE = 0x5000
_TICK_MS = 0.01
"""What an operation takes, for those who measure."""


class Streams:
    """The streams of one engine: a pool, and a handle for each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pool: list[OperationQueue] = []
        self._next = 0
        self._handles: dict[OperationQueue, int] = {engine.default: 0}
        self._lock = threading.Lock()

    def fresh(self) -> OperationQueue:
        """Return the next stream of the pool."""
        with self._lock:
            if len(self._pool) < POOL:
                queue = self.engine.new_stream()
                self._pool.append(queue)
                self.handle(queue)
                return queue
            self._next = (self._next + 1) % POOL
            return self._pool[self._next - 1]

    def handle(self, queue: OperationQueue) -> int:
        """Return the number that stands for a stream in other libraries."""
        return self._handles.setdefault(queue, _FIRST_HANDLE + len(self._handles))

    def by_handle(self, handle: int | None) -> OperationQueue:
        """Return the stream that a number stands for; 0, 1, 2 and None are the default one."""
        if handle in {None, 0, 1, 2}:
            return self.engine.default
        for queue, known in self._handles.items():
            if known == handle:
                return queue
        raise RuntimeError(f"no stream of the simulated device has the handle {handle}")


_streams: Streams | None = None


def use(streams: Streams | None) -> None:
    """Set whose streams new `Stream` objects are."""
    global _streams  # noqa: PLW0603 - torch.cuda is global too
    _streams = streams


def streams() -> Streams:
    """Return the active simulation's streams."""
    if _streams is None:
        raise RuntimeError("the simulation of this stream has ended")
    return _streams


class Stream:
    """`torch.cuda.Stream` and `torch.Stream`: a queue of the simulated device.

    Args:
        device: `cuda`, or None.
        priority: Kept; a schedule knows no priorities.
        **external: `stream_ptr`, the handle of a stream that another library made.
    """

    queue: OperationQueue

    def __init__(self, device: Any = None, priority: int = 0, **external: Any) -> None:
        check_device(device)
        handle = external.get("stream_ptr")
        known = streams()
        if handle is not None:
            self.queue = known.by_handle(handle)
        elif "stream_id" in external:
            self.queue = known.by_handle(external["stream_id"])
        else:
            self.queue = known.fresh()
        self.priority = priority
        self._before: list[OperationQueue] = []

    @classmethod
    def of(cls, queue: OperationQueue) -> Stream:
        """Return a stream object for a queue."""
        stream = cls.__new__(cls)
        stream.queue, stream.priority = queue, 0
        stream._before = []  # noqa: SLF001 - of its own class
        return stream

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """As a GPU says."""
        return (0, -5)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return hash(id(self.queue))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"

    @property
    def device(self) -> torch.device:
        """`cuda:0`."""
        return CUDA

    @property
    def device_index(self) -> int:
        """0."""
        return 0

    @property
    def device_type(self) -> int:
        """The number of CUDA."""
        return 1

    @property
    def cuda_stream(self) -> int:
        """The handle for other libraries."""
        return streams().handle(self.queue)

    @property
    def stream_id(self) -> int:
        """As `cuda_stream`."""
        return self.cuda_stream

    @property
    def _as_parameter_(self) -> int:
        return self.cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def wait_stream(self, stream: Stream) -> None:
        """Come after all that is queued on `stream`. Ordering: an edge from it."""
        engine = streams().engine
        if self.queue is not stream.queue:
            order(engine, self.queue, engine.record(stream.queue))

    def wait_event(self, event: Event) -> None:
        """Come after the event's last record. Ordering: an edge from it."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for all that is queued here. Blocks."""
        streams().engine.finish(self.queue, "a stream")

    def query(self) -> bool:
        """Tell whether all is done; True is a proof for the host."""
        engine = streams().engine
        return engine.poll(engine.record(self.queue))

    def is_capturing(self) -> bool:
        """Tell whether a graph is being captured here."""
        capture = streams().engine.capture
        return capture is not None and bool(capture.covers(self.queue))

    def __enter__(self) -> Self:
        engine = streams().engine
        self._before.append(engine.stream)
        engine.stream = self.queue
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        streams().engine.stream = self._before.pop()


def order(engine: Engine, queue: OperationQueue, fence: Fence) -> None:
    """Let a stream come after a fence; what waits for a captured stream is captured too."""
    capture = engine.capture
    if capture is not None and any(capture.covers(one) for one, _ in fence.points):
        capture.join(queue)
    elif capture is None or not capture.covers(queue):
        engine.order(queue, fence)


class Event:
    """`torch.cuda.Event` and `torch.Event`: a point on a stream.

    Args:
        device: `cuda`, or None; a flag where it stands for `enable_timing`.
        enable_timing: Whether `elapsed_time` may be asked.
        blocking: Kept.
        interprocess: Kept.
        external: Kept.
    """

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if isinstance(device, bool):
            enable_timing, device = device, None
        check_device(device)
        del blocking, interprocess, external
        self.timed = enable_timing
        self.fence = Fence.EMPTY
        self.recorded = False
        self.event_id = id(self)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.fence!r}>" if self.recorded else "<torch.cuda.Event uninitialized>"

    @property
    def device(self) -> torch.device:
        """`cuda:0`."""
        return CUDA

    @property
    def cuda_event(self) -> int:
        """A number that is this event's own."""
        return self.event_id

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Event:
        """Refuse: other processes have a device of their own."""
        del device, handle
        raise RuntimeError("events of other processes cannot be simulated")

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point where the stream is now."""
        engine = streams().engine
        self.fence = engine.record(engine.stream if stream is None else stream.queue)
        self.recorded = True

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream come after the last record. Ordering: an edge; none if nothing was recorded."""
        engine = streams().engine
        if self.recorded:
            order(engine, engine.stream if stream is None else stream.queue, self.fence)

    def query(self) -> bool:
        """Tell whether the last record was reached; True is a proof for the host."""
        return not self.recorded or streams().engine.poll(self.fence)

    def synchronize(self) -> None:
        """Wait for the last record. Blocks."""
        if self.recorded:
            streams().engine.wait_host(self.fence, "an event")

    def elapsed_time(self, end_event: Event) -> float:
        """Return milliseconds between two events, made up from the operations between them."""
        if not (self.timed and end_event.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.recorded and end_event.recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("CUDA error: device not ready")
        first, last = (sum(tick for _, tick in event.fence.points) for event in (self, end_event))
        return max(_TICK_MS, (last - first) * _TICK_MS)


class StreamContext:
    """`torch.cuda.stream(s)`.

    Args:
        stream: The stream, or None for no change.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def check_device(device: Any) -> None:
    """Refuse a device that is not there, as CUDA does."""
    if device is None:
        return
    if isinstance(device, int):
        index = device
    else:
        parsed = torch.device(device)
        if parsed.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {parsed}")
        index = parsed.index or 0
    if index > 0:
        raise RuntimeError("CUDA error: invalid device ordinal (the simulated machine has one device, cuda:0)")
