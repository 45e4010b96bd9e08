"""Functional collectives: operators that return a new tensor, which `wait_tensor` awaits.

PyTorch wraps their results in a tensor that is awaited at its first use. Here that is done when the wrapper would be
made: what comes after it on the current stream is ordered either way.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import AllocationId
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_distributed import Group, Work
    from interlock.check._simulate._torch_tensor import SimTensor

_clone = torch.ops.aten.clone.default
_EACH = ("all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")


@final
class Functional:
    """The operators of one simulation.

    Args:
        dispatcher: Of the simulation.
        groups: Process groups by name.
    """

    def __init__(self, dispatcher: Dispatcher, groups: dict[str, Group]) -> None:
        self._dispatcher = dispatcher
        self._groups = groups
        self._works: dict[AllocationId, Work] = {}

    def table(self) -> dict[Any, Callable[[Any, Any, dict[str, Any]], Any]]:
        """Return what runs each operator."""
        single: dict[str, Callable[..., SimTensor]] = {
            "all_reduce": self._all_reduce,
            "all_gather_into_tensor": self._all_gather,
            "reduce_scatter_tensor": self._reduce_scatter,
            "broadcast": self._broadcast,
            "all_to_all_single": self._all_to_all,
        }
        found: dict[Any, Any] = {}
        for name, run in single.items():
            self._add(found, name, run)
        for name in _EACH:
            self._add(found, name, _for_each(single[name.removesuffix("_coalesced")]))
        for name in ("wait_tensor", "_wrap_tensor_autograd"):
            self._add(found, name, self._wait)
        return found

    def _add(self, found: dict[Any, Any], name: str, run: Callable[..., Any]) -> None:
        operator = getattr(torch.ops._c10d_functional, name, None)  # noqa: SLF001 - where PyTorch has them
        if operator is not None:
            found[operator.default] = lambda _func, args, _kwargs: run(*args)

    def _group(self, group: Any) -> Group:
        return self._groups[str(getattr(group, "group_name", group))]

    def _copy(self, tensor: SimTensor) -> SimTensor:
        copy: SimTensor = self._dispatcher(_clone, (tensor,), {})
        return copy

    def _empty(self, tensor: SimTensor, rows: int) -> SimTensor:
        return self._dispatcher.uninitialised(tensor.oracle.new_empty((rows, *tensor.shape[1:])))

    def _started(self, tensor: SimTensor, work: Work) -> SimTensor:
        self._works[tensor.cell.block.allocation] = work
        return tensor

    def _all_reduce(self, tensor: SimTensor, operation: str, group: Any) -> SimTensor:
        result = self._copy(tensor)
        return self._started(result, self._group(group).allreduce([result], _options(operation)))

    def _all_gather(self, tensor: SimTensor, ranks: int, group: Any) -> SimTensor:
        result = self._empty(tensor, tensor.shape[0] * ranks)
        return self._started(result, self._group(group).all_gather_single(result, tensor))

    def _reduce_scatter(self, tensor: SimTensor, operation: str, ranks: int, group: Any) -> SimTensor:
        result = self._empty(tensor, tensor.shape[0] // ranks)
        work = self._group(group).reduce_scatter_single(result, tensor, _options(operation))
        return self._started(result, work)

    def _broadcast(self, tensor: SimTensor, source: int, group: Any) -> SimTensor:
        result = self._copy(tensor)
        return self._started(result, self._group(group).broadcast([result], SimpleNamespace(rootRank=source)))

    def _all_to_all(self, tensor: SimTensor, outputs: Any, inputs: Any, group: Any) -> SimTensor:
        result = self._empty(tensor, sum(outputs) if outputs else tensor.shape[0])
        return self._started(result, self._group(group).alltoall_base(result, tensor, outputs, inputs))

    def _wait(self, tensor: SimTensor) -> SimTensor:
        work = self._works.pop(tensor.cell.block.allocation, None)
        if work is not None:
            work.wait()
        return tensor


def _for_each(run: Callable[..., SimTensor]) -> Callable[..., list[SimTensor]]:
    return lambda tensors, *rest: [run(tensor, *rest) for tensor in tensors]


def _options(operation: str) -> SimpleNamespace:
    return SimpleNamespace(reduceOp=operation)
