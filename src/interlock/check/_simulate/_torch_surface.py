"""Methods of `torch.Tensor` and of `SimTensor`, put in place for one simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from interlock.check._simulate._torch_arrays import watched
from interlock.check._simulate._torch_methods import Base
from interlock.check._simulate._torch_tensor import CUDA, SimTensor

if TYPE_CHECKING:
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_methods import Methods
    from interlock.check._simulate._torch_streams import Stream

Tensor = torch.Tensor
_NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)
_CPU = torch.device("cpu")


def patch_tensors(patches: Patches, methods: Methods) -> None:
    """Replace the methods."""
    for name, method in _for_all(methods).items():
        patches.set(Tensor, name, method)
    for name, method in _for_device(methods).items():
        patches.set(SimTensor, name, method)


def _for_all(methods: Methods) -> dict[str, Any]:
    hosts = methods.hosts

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return methods.to(self, args, kwargs)

    def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:  # noqa: FBT001, FBT002 - as in PyTorch
        options = {} if memory_format is None else {"memory_format": memory_format}
        return methods.to(self, (CUDA if device is None else device,), {"non_blocking": non_blocking, **options})

    def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
        if isinstance(self, SimTensor):
            return methods.move(self, _CPU, None, layout=memory_format)
        return self

    def numpy(self: Tensor, *, force: bool = False) -> Any:
        return watched(Base.numpy(self, force=force), hosts)

    def array(self: Tensor, dtype: Any = None, copy: Any = None) -> Any:
        hosts.touch(self, "read", "numpy read", exact=bool(copy))
        return original_array(self, dtype) if copy is None else original_array(self, dtype, copy=copy)

    original_array: Any = Tensor.__array__

    def escapes(name: str, label: str) -> Any:
        original = getattr(Base, name, None) or getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(self, SimTensor):
                hosts.touch(self, "read", label, exact=name == "tolist")
            return original(self, *args, **kwargs)

        return method

    return {
        "to": to,
        "cuda": cuda,
        "cpu": cpu,
        "copy_": lambda self, src, non_blocking=False: methods.copy_(self, src, non_blocking),
        "pin_memory": lambda self, device=None: methods.pin_memory(self),  # noqa: ARG005 - as in PyTorch
        "is_pinned": lambda self, device=None: not isinstance(self, SimTensor) and hosts.is_pinned(self),  # noqa: ARG005
        "numpy": numpy,
        "tolist": escapes("tolist", "tolist"),
        "data_ptr": escapes("data_ptr", "data_ptr"),
        "__array__": array,
        "__dlpack__": escapes("__dlpack__", "dlpack"),
        "data": property(Base.data.__get__, methods.set_data),
    }


def _refuse_numpy(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise TypeError(_NO_NUMPY)


def _for_device(methods: Methods) -> dict[str, Any]:
    def represent(self: SimTensor, *, tensor_contents: Any = None) -> str:
        del tensor_contents
        return methods.shown(self)

    def record_stream(self: SimTensor, stream: Stream) -> None:
        methods.record_stream(self, stream)

    return {
        "numpy": _refuse_numpy,
        "__array__": _refuse_numpy,
        "tolist": lambda self: methods.value(self).tolist(),
        "record_stream": record_stream,
        "__repr__": represent,
        "__deepcopy__": methods_deepcopy(methods),
        "share_memory_": lambda self: self,
        "is_shared": lambda _self: True,
        "type": lambda self, dtype=None, non_blocking=False, **_: _type(
            methods, self, dtype, non_blocking=non_blocking
        ),
    }


def methods_deepcopy(methods: Methods) -> Any:
    """Return `__deepcopy__`."""

    def deepcopy(self: SimTensor, memo: dict[int, Any]) -> Tensor:
        return methods.deepcopy(self, memo)

    return deepcopy


def _type(methods: Methods, tensor: SimTensor, dtype: Any, *, non_blocking: bool) -> Any:
    """`Tensor.type`, which also names devices."""
    if dtype is None:
        return Base.type(tensor.oracle).replace("torch.", "torch.cuda.")
    if isinstance(dtype, torch.dtype):
        return methods.to(tensor, (dtype,), {})
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    kind = Base.type(torch.empty(0), name.replace(".cuda", "")).dtype
    device = CUDA if ".cuda" in name else _CPU
    return methods.to(tensor, (), {"device": device, "dtype": kind, "non_blocking": non_blocking})
