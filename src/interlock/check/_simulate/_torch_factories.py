"""Operations that make tensors, or that have no device tensor among their arguments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from interlock.check._simulate._torch_dispatch import Operands
from interlock.check._simulate._torch_effects import effects_of
from interlock.check._simulate._torch_streams import check_device
from interlock.check._simulate._torch_tensor import CUDA, SimTensor, wrap_new

if TYPE_CHECKING:
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_exports import Exports
    from interlock.check._simulate._torch_hosts import Hosts
    from interlock.check._simulate._torch_methods import Methods

Tensor = torch.Tensor
aten = torch.ops.aten


@final
class Factories:
    """Makes tensors where they are asked for."""

    def __init__(self, dispatcher: Dispatcher, hosts: Hosts) -> None:
        self.dispatcher = dispatcher
        self.hosts = hosts

    def handle(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run any operation at all: the entry of the mode that is on in every thread."""
        dispatcher = self.dispatcher
        if not dispatcher.engine.live:
            return func(*args, **kwargs)
        if types or id(func) in dispatcher.special:
            return dispatcher(func, args, kwargs)
        device = kwargs.get("device") if kwargs else None
        if device is not None and device.type == "cuda":
            check_device(device)
            if args and isinstance(args[0], Tensor):  # made after the likeness of a host tensor
                shape = torch.empty_like(args[0], device="cpu", pin_memory=False)
                args = (wrap_new(dispatcher.engine, shape, dispatcher.engine.stream), *args[1:])
            return dispatcher.run(func, args, kwargs)
        if kwargs and kwargs.get("pin_memory"):
            return self.hosts.pin(self.hosts.run(func, args, {**kwargs, "pin_memory": False}))
        return self.hosts.run(func, args, kwargs)


@final
class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's own
    """Sees every operation of a thread, also those on plain CPU tensors."""

    def __init__(self, factories: Factories) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._factories = factories
        self._handle = factories.handle

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled in a simulation, and saying otherwise loads the compiler."""
        return False

    @classmethod
    def like(cls, other: Watch) -> Watch:
        """Return another one for another thread."""
        return cls(other._factories)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, unseen by a tracer: no line of the program runs in it, and following ours costs most."""
        trace = sys.gettrace()
        if trace is None:
            return self._handle(func, SimTensor in types, args, kwargs or {})
        sys.settrace(None)
        try:
            return self._handle(func, SimTensor in types, args, kwargs or {})
        finally:
            sys.settrace(trace)


def asked_device(kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that a call asks for by name, or by the default device."""
    device = kwargs.get("device")
    if device is None:
        return _default_device() if torch._C._len_torch_function_stack() else None  # noqa: SLF001
    if isinstance(device, torch.device):
        return device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _default_device() -> torch.device | None:
    """Return what `torch.set_default_device` or `with torch.device(...)` set."""
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):  # type: ignore[no-untyped-call] # noqa: SLF001
        if isinstance(mode, DeviceContext):
            return torch.device(mode.device)
    return None


def patch_factories(patches: Patches, methods: Methods, exports: Exports) -> None:
    """Replace the factories that C++ cannot run for a device that it does not have."""

    def from_data(original: Any) -> Any:
        def make(data: Any, *args: Any, **kwargs: Any) -> Any:
            device = asked_device(kwargs)
            if device is None and isinstance(data, SimTensor):
                device = CUDA
            if device is None or device.type != "cuda":
                if isinstance(data, SimTensor) and device is not None:
                    data = methods.value(data)
                return original(data, *args, **kwargs)
            check_device(device)
            needs, pin = kwargs.pop("requires_grad", False), kwargs.pop("pin_memory", False)
            del pin
            kwargs["device"] = torch.device("cpu")
            if not isinstance(data, Tensor) and hasattr(data, "__cuda_array_interface__"):
                return exports.from_interface(data.__cuda_array_interface__).requires_grad_(needs)
            return _on_device(original, methods, data, args, kwargs).requires_grad_(needs)

        return make

    for name in ("tensor", "as_tensor", "asarray"):
        patches.set(torch, name, from_data(getattr(torch, name)))
    for name in ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"):
        patches.set(torch, name, _like(getattr(torch, name)))
    for name in ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"):
        patches.set(SimTensor, name, _new(getattr(Tensor, name), name, methods))


def _on_device(original: Any, methods: Methods, data: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    dtype = kwargs.get("dtype", args[0] if args else None)
    if isinstance(data, SimTensor):
        copies = original is not torch.as_tensor and original is not torch.asarray
        found = data if dtype is None or dtype == data.dtype else data.to(dtype)
        return found.detach().clone() if copies else found
    made: Tensor = original(data, *args, **kwargs)
    return methods.move(made.detach(), CUDA, None)


def _like(original: Any) -> Any:
    """A factory after the likeness of a device tensor, asked for on the host."""

    def make(like: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or not isinstance(like, SimTensor) or torch.device(device).type == "cuda":
            return original(like, *args, **kwargs)
        return original(like.oracle, *args, **kwargs)

    return make


def _new(original: Any, name: str, methods: Methods) -> Any:
    def make(self: SimTensor, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cuda":
            return getattr(self.oracle, name)(*args, **kwargs)
        if name == "new_tensor":
            kwargs.pop("device", None)
            needs = kwargs.pop("requires_grad", False)
            return methods.move(self.oracle.new_tensor(*args, **kwargs), CUDA, None).requires_grad_(needs)
        return original(self, *args, **kwargs)

    return make


__all__ = ["Factories", "Operands", "Watch", "asked_device", "effects_of", "patch_factories"]
