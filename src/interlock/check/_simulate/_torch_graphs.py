"""CUDA graphs: a capture records operations on fixed memory, a replay runs them all as one operation.

A replay is on a timeline of its own, `graph-N`, which comes after the current stream and before what is queued there
next, so that reports can tell that a graph used the memory. As on CUDA a graph knows addresses only: it keeps the
memory that was allocated in its capture, and nothing of what the program had before.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._sites import here
from interlock.check._simulate._torch_dispatch import Work, copy_random
from interlock.check._simulate._torch_effects import HOST_INDICES
from interlock.check._simulate._torch_hosts import same
from interlock.check._simulate._torch_streams import Stream, StreamContext, streams
from interlock.check._simulate._torch_tensor import poison, raw_bytes, regions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from interlock._core._events import Region
    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._engine import Block, Engine
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_copies import Copies
    from interlock.check._simulate._torch_dispatch import Operands
    from interlock.check._simulate._torch_tensor import SimTensor

Tensor = torch.Tensor
_pools = itertools.count(1)
_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one
_address: Any = torch._C.TensorBase.data_ptr  # noqa: SLF001 - as above
_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class _Node(Protocol):
    """One captured operation. Holds bytes and no device tensors: those are the program's to free."""

    name: str
    reads: list[Region]
    writes: list[Region]

    def prepare(self) -> Callable[[], None]:
        """Run on the oracle now; return what runs on the adversary later."""
        ...

    def queued(self, fence: Fence) -> None:
        """Take the fence of the replay that holds it."""
        ...


@final
class _Kernel:
    """A captured operation on device tensors."""

    def __init__(self, operands: Operands, result: Any, work: Work, made: Iterable[SimTensor]) -> None:
        self.name = operands.effects.name
        changed = {id(tensor) for tensor in operands.written}
        self.reads = regions(tensor for tensor in operands.tensors if id(tensor) not in changed)
        self.writes = regions(operands.written) + regions(made)
        self._effects, self._func = operands.effects, operands.func
        self._oracle, self._kw_oracle = operands.oracle, operands.kw_oracle
        self._adversary, self._kw_adversary = operands.adversary, operands.kw_adversary
        self._flat, self._engine = operands.flat, work.engine
        self._result, self._outputs = result, work.outputs

    def prepare(self) -> Work:
        """As in `_Node`."""
        effects = self._effects
        random = effects.random and not effects.pure_random
        state = torch.default_generator.get_state() if random else None
        result = self._func(*self._oracle, **self._kw_oracle)
        work = Work(self._engine, self.name, self._func, self._adversary, self._kw_adversary)
        work.flat, work.outputs, work.state = self._flat, self._outputs, state
        if effects.pure_random:
            copy_random(work, result)
        _refresh(self._result, result)
        return work

    def queued(self, fence: Fence) -> None:
        """As in `_Node`."""


@final
class _CopyIn:
    """A captured copy to the device; each replay reads the host memory anew."""

    name = "aten::copy_"

    def __init__(self, copies: Copies, target: SimTensor, source: Tensor) -> None:
        self._hosts, self._source = copies.hosts, source.detach()
        self._oracle, self._cell = target.oracle, target.cell
        self._block = copies.hosts.track(source)
        region = copies.hosts.region(source, self._block)
        self.reads, self.writes = [] if region is None else [region], regions([target])

    def prepare(self) -> Callable[[], None]:
        """As in `_Node`."""
        _copy(self._oracle, self._hosts.expected(self._source))
        return lambda: _copy(self._cell.get(), self._source)

    def queued(self, fence: Fence) -> None:
        """As in `_Node`."""
        self._block.use(fence)


@final
class _CopyOut:
    """A captured copy to pinned host memory."""

    name = "aten::copy_"

    def __init__(self, copies: Copies, target: Tensor, source: SimTensor) -> None:
        self._copies, self._target = copies, target.detach()
        self._oracle, self._cell = source.oracle, source.cell
        self._block = copies.hosts.track(target)
        self._value: Tensor = target
        region = copies.hosts.region(target, self._block)
        self.reads, self.writes = regions([source]), [] if region is None else [region]

    def prepare(self) -> Callable[[], None]:
        """As in `_Node`."""
        value = self._value = _copy(torch.empty_like(self._target), self._oracle)
        if not self._block.is_used() and self._target.is_contiguous():
            self._target.view(-1).view(torch.uint8).fill_(0xFF)

        def run() -> None:
            _copy(self._target, self._cell.get())
            if not same(self._target, value):
                self._copies.wrong([*self.reads, *self.writes], self._target, value)

        return run

    def queued(self, fence: Fence) -> None:
        """As in `_Node`."""
        self._block.use(fence)
        self._copies.hosts.land(self._target, self._block, self._value, fence)


@final
class Capture:
    """What is recorded. Nothing runs in a capture; only the oracle does, to learn shapes, and is put back at its end.

    Args:
        engine: The simulation.
        queue: The stream that it began on.
        graph: The timeline of the replays.

    Attributes:
        nodes: The operations.
        blocks: Memory that was allocated in the capture.
    """

    def __init__(self, engine: Engine, queue: OperationQueue, graph: OperationQueue) -> None:
        self.nodes: list[_Node] = []
        self.blocks: list[Block] = []
        self._engine = engine
        self._queues = {queue}
        self._graph = graph
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: list[Tensor] = []
        self._random = torch.default_generator.get_state()

    def covers(self, queue: Any) -> bool:
        """Tell whether what is queued on a stream is recorded."""
        return queue in self._queues

    def join(self, queue: OperationQueue) -> None:
        """Record another stream too: it waits for one that is recorded."""
        self._queues.add(queue)

    def keep(self, block: Block) -> None:
        """Keep memory that was allocated in the capture as long as the graph."""
        self.blocks.append(block)

    def before(self, operands: Operands) -> None:
        """Remember what an operation changes on the oracle.

        Raises:
            RuntimeError: The host would have to wait for its result.
        """
        effects = operands.effects
        if effects.blocking and (effects.name not in HOST_INDICES or _has_mask(operands.oracle[1])):
            raise RuntimeError(_NOT_PERMITTED)
        self._remember(operands.written)

    def _remember(self, written: Iterable[SimTensor]) -> None:
        for tensor in written:
            raw = raw_bytes(tensor.oracle)
            self._before.setdefault(_address(raw), (raw, raw.clone()))

    def add(self, operands: Operands, result: Any, work: Work, made: Sequence[SimTensor]) -> None:
        """Record an operation."""
        self._made += [tensor.oracle for tensor in made]
        self._record(_Kernel(operands, result, work, made), [*operands.tensors, *made])

    def copy_in(self, copies: Copies, target: SimTensor, source: Tensor, *, non_blocking: bool) -> None:
        """Record a copy to the device.

        Raises:
            RuntimeError: The host would have to wait for it.
        """
        if not non_blocking:
            raise RuntimeError(_NOT_PERMITTED)
        self._remember([target])
        node = _CopyIn(copies, target, source)
        node.prepare()
        self._record(node, [target])

    def copy_out(self, copies: Copies, target: Tensor, source: SimTensor) -> None:
        """Record a copy to pinned host memory."""
        self._record(_CopyOut(copies, target, source), [source])

    def _record(self, node: _Node, tensors: Iterable[SimTensor]) -> None:
        self.nodes.append(node)
        for tensor in tensors:
            block = tensor.cell.block
            if block.shared is None:
                block.shared = set()
            block.shared.add(self._graph)

    def end(self) -> None:
        """Put back what the oracle changed, and poison what it made: nothing has run yet."""
        for made in self._made:
            poison(made)
        for raw, before in self._before.values():
            _copy(raw, before)
        self._before.clear()
        self._made.clear()
        torch.default_generator.set_state(self._random)

    def accesses(self) -> list[tuple[Region, Any, str]]:
        """Return what a replay touches: each region once a mode, with the first operation that does."""
        found: dict[tuple[Region, str], str] = {}
        for node in self.nodes:
            for region in node.reads:
                found.setdefault((region, "read"), node.name)
            for region in node.writes:
                found.setdefault((region, "write"), node.name)
        return [(region, mode, name) for (region, mode), name in found.items()]


def _has_mask(indices: Any) -> bool:
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _refresh(target: Any, value: Any) -> None:
    """Put new results into the oracle's fixed memory."""
    if isinstance(target, Tensor):
        if target is not value:
            _copy(target, value)
    elif isinstance(target, (list, tuple)):
        for one, other in zip(target, value, strict=True):
            _refresh(one, other)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`.

    Args:
        keep_graph: Kept.
    """

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: FBT001, FBT002 - as in PyTorch
        del keep_graph
        self._engine = streams().engine
        self._queue = self._engine.new_stream("graph")
        self._capture: Capture | None = None
        self._accesses: list[tuple[Region, Any, str]] = []
        self._pool = (0, next(_pools))

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
        """Record from now on what the current stream is given.

        Raises:
            RuntimeError: Another capture is under way, or the current stream is the default one.
        """
        del capture_error_mode, options
        engine = self._engine
        if engine.capture is not None:
            raise RuntimeError(_NOT_PERMITTED)
        if engine.stream is engine.default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        self._pool = pool if pool is not None else self._pool
        self._capture = engine.capture = Capture(engine, engine.stream, self._queue)

    def capture_end(self) -> None:
        """Stop recording.

        Raises:
            RuntimeError: Nothing is recorded by this graph.
        """
        capture, engine = self._capture, self._engine
        if capture is None or engine.capture is not capture:
            raise RuntimeError("CUDA error: no capture of this graph is under way")
        engine.capture = None
        with engine.guard():
            capture.end()
        self._accesses = capture.accesses()

    def instantiate(self) -> None:
        """Nothing is left to do."""

    def replay(self) -> None:
        """Queue all that was recorded, as one operation.

        Ordering: comes after what is queued on the current stream, and before what is queued there next.

        Raises:
            RuntimeError: Nothing was captured, or the current stream is captured itself.
        """
        capture, engine, queue = self._capture, self._engine, self._queue
        if capture is None or engine.capture is capture:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        caller = engine.stream
        if engine.capture is not None and engine.capture.covers(caller):
            raise RuntimeError(_NOT_PERMITTED)
        engine.order_streams(queue, caller)
        if observed():
            issuer, site, timeline = host_timeline(), here(), queue.name
            for region, mode, name in self._accesses:
                emit(Access(timeline, region, mode, name, issuer, site))
        with engine.guard():
            steps = [node.prepare() for node in capture.nodes]

        def run() -> None:
            for step in steps:
                step()

        fence = Fence([(queue, engine.enqueue(queue, run, "graph"))])
        for node in capture.nodes:
            node.queued(fence)
        engine.order_streams(caller, queue)

    def reset(self) -> None:
        """Forget the graph; memory of it that the program still uses is the program's from now on."""
        if self._capture is not None:
            for block in self._capture.blocks:
                block.pool = False
        self._capture, self._accesses = None, []

    def pool(self) -> Any:
        """Return the name of the memory pool."""
        return self._pool

    def enable_debug_mode(self) -> None:
        """There is nothing to keep."""

    def debug_dump(self, debug_path: str) -> None:
        """Write nothing: there is no such graph."""
        del debug_path

    def register_generator_state(self, generator: Any) -> None:
        """There is one generator."""
        del generator


class graph:  # noqa: N801 - as in PyTorch
    """`torch.cuda.graph`: captures what its block queues.

    Args:
        cuda_graph: What to capture into.
        pool: Memory to share.
        stream: Where to capture; a stream of its own if None.
        capture_error_mode: Kept.
        **options: Kept.
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        **options: Any,
    ) -> None:
        del options
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = Stream() if stream is None else stream
        self.capture_error_mode = capture_error_mode
        self._context = StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self._context.__enter__()
        self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cuda_graph.capture_end()
        self._context.__exit__(kind, error, trace)


def patch_graphs(patches: Patches) -> None:
    """Replace the classes and functions."""

    def is_capturing() -> bool:
        return Stream.of(streams().engine.stream).is_capturing()

    for owner in (torch.cuda, torch.cuda.graphs):
        patches.present(owner, "CUDAGraph", CUDAGraph)
        patches.present(owner, "graph", graph)
        patches.present(owner, "graph_pool_handle", lambda: (0, next(_pools)))
        patches.present(owner, "is_current_stream_capturing", is_capturing)
