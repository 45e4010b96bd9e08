"""`torch.distributed` for one rank: collectives run on a stream of their own, named `collective`.

All other ranks are taken for identical peers: they run the same program on the same values. So a sum over `n` ranks is
`n` times the own value, and what is gathered is the own value `n` times. What is simulated is the order: an
asynchronous collective comes after what is queued on the current stream, and only `Work.wait` lets the current stream
come after it.

Source: PyTorch, ProcessGroupNCCL: one stream per group; a collective that is not asynchronous is queued on the current
stream since PyTorch 2.8; a barrier makes the host wait.
"""

from __future__ import annotations

import importlib
import sys
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from interlock._core._events import observed
from interlock._core._fence import Fence
from interlock.check._simulate._torch_functional import Functional
from interlock.check._simulate._torch_peers import (
    exchange,
    exchange_lists,
    gather_flat,
    gather_into,
    reduce_all,
    reduce_flat_scatter,
    reduce_scatter_lists,
)
from interlock.check._simulate._torch_streams import order
from interlock.check._simulate._torch_tensor import SimTensor, regions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_dispatch import Dispatcher

Tensor = torch.Tensor
c10d: Any = dist.distributed_c10d
_functional: Any = importlib.import_module("torch.distributed._functional_collectives")
_rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of that name
_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one
_STREAM = "collective"
_HashStore: Any = vars(dist)["HashStore"]
_Work: Any = dist.Work
_ProcessGroup: Any = dist.ProcessGroup


class Work(_Work):  # type: ignore[misc] # its methods take other arguments in each version
    """What an asynchronous collective returns.

    Args:
        group: Whose.
        tensors: Kept until the wait, as NCCL's group does.
        fence: Reached when it is done; None while no peer has sent what is to be received.
        blocks: Whether `wait` makes the host wait, not only the current stream.
    """

    def __init__(self, group: Group, tensors: Sequence[Tensor], fence: Fence | None, *, blocks: bool = False) -> None:
        super().__init__()
        self._group = group
        self._tensors = list(tensors)
        self.fence = fence
        self._blocks = blocks

    def _reached(self) -> Fence:
        if self.fence is None:
            raise self._group.dispatcher.unsupported(
                "torch.distributed.recv", "the peers are taken for identical, and this rank has sent nothing"
            )
        return self.fence

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream come after it. Ordering: an edge to the stream that is current at the call."""
        del timeout
        engine, fence = self._group.engine, self._reached()
        if fence.points:
            order(engine, engine.stream, fence)
            if self._blocks:
                engine.wait_host(fence, "a barrier")
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether it is done; True is a proof for the host."""
        return self.fence is not None and self._group.engine.poll(self.fence)

    def is_success(self) -> bool:
        """As `is_completed`."""
        return self.is_completed()

    def exception(self) -> None:
        """None: nothing fails."""
        return

    def result(self) -> list[Tensor]:
        """Return the tensors."""
        return self._tensors

    def get_future(self) -> Any:
        """Return a future whose callbacks run behind the collective."""
        return _Future(self)


class _Future(torch.futures.Future[Any]):
    """Waits for its collective as a stream does, before anybody gets its value."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self.set_result(work.result())

    def wait(self) -> Any:
        """Let the current stream come after the collective."""
        self._work.wait()
        return super().wait()

    def value(self) -> Any:
        """As `wait`."""
        return self.wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Call back, behind the collective."""
        self._work.wait()
        return super().then(callback)


@final
class _Message:
    """What was sent: the oracle's values now, the adversary's when the stream gets there."""

    def __init__(self, oracle: Tensor) -> None:
        self.oracle = oracle
        self.adversary: Tensor | None = None


class Group(_ProcessGroup):  # type: ignore[misc] # as `Work`
    """A process group of one rank that is there and others that are taken for identical.

    Args:
        dispatcher: Of the simulation.
        rank: Of this process in the group.
        size: Number of ranks.
        name: Of the group.
        backend: Name of its backend.
        queue: The stream of its collectives.
    """

    def __init__(
        self, dispatcher: Dispatcher, rank: int, size: int, name: str, backend: str, queue: OperationQueue
    ) -> None:
        super().__init__(rank, size)
        self.dispatcher = dispatcher
        self.engine = dispatcher.engine
        self._queue = queue
        self._ranks = size
        self._own = rank
        self._backend = backend
        self._name = name
        self._sent: dict[int, deque[_Message]] = {}
        self._awaited: dict[int, deque[tuple[Work, list[Tensor]]]] = {}

    def getBackendName(self) -> str:  # noqa: N802 - as in PyTorch
        """As given."""
        return self._backend

    @property
    def group_name(self) -> str:
        """As given."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu" if self._backend in {"gloo", "mpi"} else "cuda")]

    # ------------------------------------------------------------ queueing

    def _run(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        work: Callable[[list[Tensor], list[Tensor]], None],
        options: Any = None,
    ) -> Work:
        """Run on the oracle now and on the adversary later."""
        name = f"dist.{name}"
        tensors = [*reads, *writes]
        if not any(isinstance(tensor, SimTensor) for tensor in tensors):
            with torch.no_grad():
                work(list(reads), list(writes))
            return Work(self, writes, Fence.EMPTY)
        if not all(isinstance(tensor, SimTensor) for tensor in tensors):
            self.dispatcher.refuse_mixture(name)
        engine, own = self.engine, getattr(options, "asyncOp", True)
        with engine.guard():
            work([_oracle(tensor) for tensor in reads], [_oracle(tensor) for tensor in writes])
        sources, targets = [_cell(tensor) for tensor in reads], [_cell(tensor) for tensor in writes]

        def run() -> None:
            work([cell.get() for cell in sources], [cell.get() for cell in targets])

        queue = self._queue if own else engine.stream
        engine.order_streams(queue, engine.stream)
        tick = self._submit(queue, run, name, tensors, writes)
        return Work(self, tensors, Fence([(queue, tick)]) if not own else engine.record(queue))

    def _submit(
        self, queue: OperationQueue, run: Callable[[], None], name: str, tensors: Sequence[Any], writes: Sequence[Any]
    ) -> int:
        """Queue work; memory that the program drops is kept until the collective is done, as NCCL's group keeps it."""
        for tensor in tensors:
            block = tensor.cell.block
            if block.home is not queue:
                block.kept_for = block.kept_for or set()
                block.kept_for.add(queue)
        return self.dispatcher.submit(queue, run, name, list(tensors), list(writes))

    # ------------------------------------------------------------ collectives

    def allreduce(self, tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Sum, or what `opts` says."""
        reduce = reduce_all(_operation(opts), self._ranks)
        return self._run("all_reduce", [], _listed(tensors), lambda _, writes: reduce(writes), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """As `allreduce`."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Nothing changes, since peers are identical; the root reads, the others write."""
        tensors = _listed(tensors)
        root = getattr(opts, "rootRank", 0) == self._own
        reads, writes = (tensors, []) if root else ([], tensors)
        return self._run("broadcast", reads, writes, _nothing, opts)

    def reduce(self, tensors: Any, opts: Any = None, **_: Any) -> Work:
        """As `allreduce` at the root."""
        if getattr(opts, "rootRank", 0) != self._own:
            return self._run("reduce", _listed(tensors), [], _nothing, opts)
        reduce = reduce_all(_operation(opts), self._ranks)
        return self._run("reduce", [], _listed(tensors), lambda _, writes: reduce(writes), opts)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Fill each output with the input."""
        outputs, inputs = _flat(output_tensors), _listed(input_tensors)
        return self._run("all_gather", inputs, outputs, gather_into, opts)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002 - as in PyTorch
        return self._run("all_gather_into_tensor", [input], [output], gather_flat(self._ranks), opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002 - as in PyTorch
        """Fill the output with the input, once a rank."""
        return self._allgather_base(output, input, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """As `all_gather_single`, pair by pair."""
        return self._run("all_gather_into_tensor", inputs, outputs, gather_flat(self._ranks), opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Reduce the input that is this rank's."""
        operation = reduce_scatter_lists(_operation(opts), self._ranks, self._own)
        return self._run("reduce_scatter", _flat(input_tensors), _listed(output_tensors), operation, opts)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002 - as in PyTorch
        operation = reduce_flat_scatter(_operation(opts), self._ranks, self._own)
        return self._run("reduce_scatter_tensor", [input], [output], operation, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002 - as above
        """Reduce the part of the input that is this rank's."""
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """As `reduce_scatter_single`, pair by pair."""
        operation = reduce_flat_scatter(_operation(opts), self._ranks, self._own)
        return self._run("reduce_scatter_tensor", inputs, outputs, operation, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Fill each output of the root with the input."""
        return self._run("gather", _listed(input_tensors), _flat(output_tensors), gather_into, opts)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Take what the root has for this rank; elsewhere the own value, since peers are identical."""
        own = self._own
        inputs = _flat(input_tensors)

        def take(reads: list[Tensor], writes: list[Tensor]) -> None:
            if reads:
                _copy(writes[0], reads[own])

        return self._run("scatter", inputs, _listed(output_tensors), take, opts)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Work:
        """Fill each output with what a peer has for this rank."""
        return self._run("all_to_all", input_tensors, output_tensors, exchange_lists(self._own), opts)

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - as in PyTorch
        output_splits: Any,
        input_splits: Any,
        opts: Any = None,
        **_: Any,
    ) -> Work:
        """As `alltoall`, with the parts of one tensor."""
        operation = exchange(self._ranks, self._own, list(output_splits or ()), list(input_splits or ()))
        return self._run("all_to_all_single", [input], [output], operation, opts)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None, **_: Any) -> Work:
        """Let the host wait for what is queued on the current stream."""
        engine = self.engine
        if getattr(opts, "asyncOp", True):
            engine.order_streams(self._queue, engine.stream)
            return Work(self, [], engine.record(self._queue), blocks=True)
        return Work(self, [], engine.record(engine.stream), blocks=True)

    # ------------------------------------------------------------ messages

    def send(self, tensors: Any, dst: int, tag: int = 0, **_: Any) -> Work:
        """Send; an identical peer sends the same to this rank."""
        del dst
        tensor = _listed(tensors)[0]
        message = _Message(tensor)

        def post(reads: list[Tensor], _: list[Tensor]) -> None:
            if message.oracle is tensor:
                message.oracle = reads[0].clone()
            message.adversary = reads[0].clone()

        work = self._run("send", [tensor], [], post)
        self._sent.setdefault(tag, deque()).append(message)
        awaited = self._awaited.get(tag)
        if awaited:
            receiving, targets = awaited.popleft()
            receiving.fence = self._receive(targets, self._sent[tag].popleft())
        return work

    def recv(self, tensors: Any, src: int = 0, tag: int = 0, **_: Any) -> Work:
        """Receive what this rank has sent, or will send before it waits."""
        del src
        targets = _listed(tensors)
        sent = self._sent.get(tag)
        work = Work(self, targets, None)
        if any(isinstance(tensor, SimTensor) for tensor in targets):
            self.engine.order_streams(self._queue, self.engine.stream)
            if observed():
                self.engine.accesses(self._queue, "dist.recv", [], regions(targets))  # type: ignore[arg-type]
        if sent:
            work.fence = self._receive(targets, sent.popleft())
        else:
            self._awaited.setdefault(tag, deque()).append((work, targets))
        return work

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """As `recv`."""
        return self.recv(tensors, 0, tag)

    def _receive(self, targets: list[Tensor], message: _Message) -> Fence:
        target = targets[0]
        if not isinstance(target, SimTensor):
            _copy(target, message.oracle)
            return Fence.EMPTY
        engine, cell = self.engine, target.cell
        with engine.guard():
            _copy(target.oracle, message.oracle)

        def run() -> None:
            if message.adversary is not None:
                _copy(cell.get(), message.adversary)

        engine.enqueue(self._queue, run, "dist.recv")
        return engine.record(self._queue)

    def _start_coalescing(self, device: Any = None) -> None:
        del device

    def _end_coalescing(self, device: Any = None) -> Work:
        del device
        for tag, awaited in self._awaited.items():
            while awaited and self._sent.get(tag):
                receiving, targets = awaited.popleft()
                receiving.fence = self._receive(targets, self._sent[tag].popleft())
        return Work(self, [], self.engine.record(self._queue))


def _oracle(tensor: Any) -> Tensor:
    oracle: Tensor = tensor.oracle
    return oracle


def _cell(tensor: Any) -> Any:
    return tensor.cell


def _nothing(reads: list[Tensor], writes: list[Tensor]) -> None:
    del reads, writes


def _operation(options: Any) -> Any:
    return getattr(options, "reduceOp", options)


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _flat(tensors: Any) -> list[Tensor]:
    return [tensor for part in tensors for tensor in _listed(part)]


# ------------------------------------------------------------ process groups


@final
class Groups:
    """Makes process groups."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.by_name: dict[str, Group] = {}

    def make(
        self,
        group_size: int,
        group_rank: int,
        global_ranks_in_group: Any,
        backend: Any,
        store: Any,
        group_name: Any,
        *rest: Any,
        pg_tag: Any = None,
        **options: Any,
    ) -> Any:
        """Stand for `_new_process_group_helper`."""
        del rest, options
        world = c10d._world  # noqa: SLF001 - PyTorch's table of groups has no public name
        if global_ranks_in_group and c10d.get_rank() not in global_ranks_in_group:
            return c10d.GroupMember.NON_GROUP_MEMBER, None
        engine = self._dispatcher.engine
        kind = "nccl" if str(backend) == "undefined" else str(backend)
        name = str(group_name)
        queue = engine.device.stream(_STREAM) if not global_ranks_in_group else engine.new_stream(_STREAM)
        group = self.by_name[name] = Group(self._dispatcher, group_rank, group_size, name, kind, queue)
        tag = f"user:{pg_tag}" if pg_tag else f"ptd:{name}"
        world.pg_map[group] = (kind, store)
        world.pg_names[group] = group_name
        world.pg_backend_config[group] = kind
        world.tags_to_pg.setdefault(tag, []).append(group)
        if not pg_tag:
            world.tags_to_pg.setdefault("", []).append(group)
        world.pg_to_tag[group] = tag
        return group, store


def patch_distributed(patches: Patches, dispatcher: Dispatcher, stack: ExitStack) -> None:
    """Let process groups be simulated ones."""
    groups = Groups(dispatcher)
    table = Functional(dispatcher, groups.by_name).table()
    dispatcher.special.update({id(func): rule for func, rule in table.items()})
    hook = sys.excepthook
    stack.callback(_leave, hook)
    patches.present(_functional, "_maybe_wrap_tensor", _functional.wait_tensor)
    patches.set(c10d, "_new_process_group_helper", groups.make)
    patches.present(_rendezvous, "_create_c10d_store", lambda *_, **__: _HashStore())
    patches.present(c10d, "_store_based_barrier", lambda *_, **__: None)
    patches.present(c10d, "_get_default_timeout", lambda _backend: timedelta(minutes=10))
    patches.present(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    patches.set(parallel, "__init__", _refuse(parallel.__init__, dispatcher))
    for name in ("is_nccl_available", "is_gloo_available"):
        patches.present(c10d, name, lambda: True)
        patches.present(dist, name, lambda: True)


def _refuse(original: Any, dispatcher: Dispatcher) -> Any:
    def start(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(parameter, SimTensor) for parameter in module.parameters()):
            raise dispatcher.unsupported(
                "DistributedDataParallel",
                "its buckets are made in C++, for the CPU that device tensors really lie on",
                "check the program on one rank without the wrapper, or with all_reduce on the gradients",
            )
        original(self, module, *args, **kwargs)

    return start


def _leave(hook: Any) -> None:
    """Forget groups that the program left, and the hook that PyTorch installs with them."""
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.excepthook = hook
