"""Methods of tensors that C++ would answer from the oracle's bytes, or with the wrong device."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, final

import torch

from interlock.check._simulate._torch_streams import check_device
from interlock.check._simulate._torch_tensor import CUDA, SimTensor, reseat

if TYPE_CHECKING:
    from interlock.check._simulate._torch_copies import Copies
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_hosts import Hosts

Tensor = torch.Tensor
Base: Any = torch._C.TensorBase  # noqa: SLF001 - where the C methods are
_NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)


@final
class Target:
    """What `Tensor.to` was asked for."""

    __slots__ = ("copy", "device", "dtype", "layout", "non_blocking")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.device: Any = kwargs.get("device")
        self.dtype: Any = kwargs.get("dtype")
        self.non_blocking = bool(kwargs.get("non_blocking", False))
        self.copy = bool(kwargs.get("copy", False))
        self.layout: Any = kwargs.get("memory_format")
        flags: list[bool] = []
        for one in (*args, *([kwargs["other"]] if "other" in kwargs else ())):
            if isinstance(one, Tensor):
                self.device, self.dtype = one.device, one.dtype
            elif isinstance(one, bool):
                flags.append(one)
            elif isinstance(one, torch.dtype):
                self.dtype = one
            elif one is not None:
                self.device = one
        if flags:
            self.non_blocking = flags[0]
        if len(flags) > 1:
            self.copy = flags[1]
        if self.device is not None and not isinstance(self.device, torch.device):
            self.device = (
                torch.device("cuda", self.device) if isinstance(self.device, int) else torch.device(self.device)
            )
        if self.device is not None and self.device.type == "cuda":
            check_device(self.device)


def names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell cheaply whether arguments of `to` name a CUDA device."""
    for one in (*args, *kwargs.values()):
        kind = type(one)
        if kind is SimTensor or kind is int:
            return True
        if (kind is str and one.startswith("cuda")) or (kind is torch.device and one.type == "cuda"):
            return True
    return False


class _Across(torch.autograd.Function):
    """A copy between host and device that gradients cross back."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, move: Any, move_back: Any) -> Tensor:
        """Move the value."""
        ctx.move_back, ctx.dtype = move_back, source.dtype
        result: Tensor = move(source.detach())
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Move the gradient back."""
        return ctx.move_back(grads[0], ctx.dtype), None, None


@final
class Methods:
    """Methods of tensors in one simulation, for `SimTensor` and for plain tensors."""

    def __init__(self, dispatcher: Dispatcher, copies: Copies, hosts: Hosts) -> None:
        self.dispatcher = dispatcher
        self.engine = dispatcher.engine
        self.copies = copies
        self.hosts = hosts
        self.original_to = Base.to

    # ------------------------------------------------------------ moving

    def to(self, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """`Tensor.to`."""
        on_device = isinstance(tensor, SimTensor)
        if not on_device and not names_device(args, kwargs):
            return self.original_to(tensor, *args, **kwargs)  # type: ignore[no-any-return]
        target = Target(args, kwargs)
        options = {"dtype": target.dtype, "copy": target.copy}
        if target.layout is not None:
            options["memory_format"] = target.layout
        stays = target.device is None or target.device.type == ("cuda" if on_device else "cpu")
        if stays:
            return self.original_to(tensor, **options)  # type: ignore[no-any-return]
        return self.move(tensor, target.device, target.dtype, non_blocking=target.non_blocking, layout=target.layout)

    def move(
        self, tensor: Tensor, device: torch.device, dtype: Any, *, non_blocking: bool = False, layout: Any = None
    ) -> Tensor:
        """Copy to the other side, as part of the autograd graph."""
        if device.type not in {"cuda", "cpu"}:
            return torch.empty_like(
                tensor.oracle if isinstance(tensor, SimTensor) else tensor, device=device, dtype=dtype
            )

        def forth(source: Tensor) -> Tensor:
            return self._move(source, dtype, non_blocking=non_blocking, layout=layout)

        if tensor.requires_grad and torch.is_grad_enabled():
            back_to = CUDA if isinstance(tensor, SimTensor) else torch.device("cpu")
            return _Across.apply(tensor, forth, lambda grad, kind: self.move(grad, back_to, kind))  # type: ignore[no-any-return,no-untyped-call]
        return forth(tensor)

    def _move(self, source: Tensor, dtype: Any, *, non_blocking: bool, layout: Any) -> Tensor:
        with self.engine.guard():
            if isinstance(source, SimTensor):
                return self.copies.to_host(source, dtype=dtype, non_blocking=non_blocking, layout=layout)
            if self.dispatcher.in_backward():
                self.dispatcher.backward_stream()
            return self.copies.to_device(source, dtype=dtype, non_blocking=non_blocking, layout=layout)

    def value(self, tensor: SimTensor) -> Tensor:
        """Return the values on the host. Blocks: until the stream got there."""
        return self._move(tensor.detach(), None, non_blocking=False, layout=None)

    def copy_(self, target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:  # noqa: FBT001 - as in PyTorch
        """`Tensor.copy_`; a source that needs gradients is moved first, so that they cross back."""
        across = isinstance(target, SimTensor) is not isinstance(source, SimTensor)
        if across and source.requires_grad and torch.is_grad_enabled():
            source = self.move(source, target.device, None)
        return Base.copy_(target, source, non_blocking)  # type: ignore[no-any-return]

    # ------------------------------------------------------------ attributes

    def set_data(self, tensor: Tensor, value: Tensor) -> None:
        """`tensor.data = value`, which may move a parameter to the device and back."""
        if isinstance(value, SimTensor) is isinstance(tensor, SimTensor):
            Base.data.__set__(tensor, value)
            if isinstance(value, SimTensor) and isinstance(tensor, SimTensor):
                reseat(tensor, value.oracle, value.cell.block, value.handle)
            return
        grad, needs = tensor.grad, tensor.requires_grad
        tensor.grad = None
        other = value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            other = torch.nn.Parameter(other, requires_grad=needs)
        else:
            other.requires_grad_(needs)
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
        tensor.grad = grad if grad is None or isinstance(grad, SimTensor) is isinstance(value, SimTensor) else None

    def record_stream(self, tensor: SimTensor, stream: Any) -> None:
        """Keep the memory until what is queued on `stream` when it is freed is done."""
        block = tensor.cell.block
        if stream.queue is not block.home:
            if block.kept_for is None:
                block.kept_for = set()
            block.kept_for.add(stream.queue)

    def deepcopy(self, tensor: SimTensor, memo: dict[int, Any]) -> Tensor:
        """Copy on the device."""
        if id(tensor) in memo:
            return memo[id(tensor)]  # type: ignore[no-any-return]
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment."
            )
        with torch.no_grad():
            new = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        else:
            new.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            new.grad = copy.deepcopy(tensor.grad, memo)
        memo[id(tensor)] = new
        return new

    def pin_memory(self, tensor: Tensor) -> Tensor:
        """Return a page-locked copy on the host."""
        if isinstance(tensor, SimTensor):
            raise RuntimeError(  # noqa: TRY004 - what PyTorch raises
                "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
            )
        if self.hosts.is_pinned(tensor):
            return tensor
        result = tensor.clone()
        with torch.no_grad():
            self.hosts.pin(result)
        return result

    def shown(self, tensor: SimTensor) -> str:
        """As PyTorch prints a device tensor. Blocks: until the stream got there."""
        with torch.no_grad():
            text = repr(self.value(tensor))
        end = f", device='{CUDA}'"
        if tensor.grad_fn is not None:
            end += f", grad_fn=<{type(tensor.grad_fn).__name__}>"
        elif tensor.requires_grad:
            end += ", requires_grad=True"
        text = f"{text[:-1]}{end})"
        return f"Parameter containing:\n{text}" if isinstance(tensor, torch.nn.Parameter) else text
