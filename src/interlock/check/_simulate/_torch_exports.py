"""Device memory handed to other libraries and taken back: DLPack and `__cuda_array_interface__`.

Both carry a stream: DLPack's consumer says on which it will read, and the producer orders that stream behind its own.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, final

import torch

from interlock.check._simulate._torch_streams import streams
from interlock.check._simulate._torch_tensor import SimTensor, wrap

if TYPE_CHECKING:
    from interlock.check._simulate._engine import Handle
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_tensor import Cell

Tensor = torch.Tensor
_address: Any = torch._C.TensorBase.data_ptr  # noqa: SLF001 - not the patched one
_CUDA_IN_DLPACK = 2
_NO_EDGE = -1
_KINDS = {
    torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8", torch.uint8: "|u1", torch.int8: "|i1",
    torch.int16: "<i2", torch.int32: "<i4", torch.int64: "<i8", torch.bool: "|b1", torch.complex64: "<c8",
    torch.complex128: "<c16",
}  # fmt: skip


@final
class Capsule:
    """What `__dlpack__` returns: device memory on its way to a consumer.

    Args:
        tensor: The tensor.
    """

    def __init__(self, tensor: SimTensor) -> None:
        self.tensor = tensor

    def take(self) -> SimTensor:
        """Return a tensor over the same memory, without history."""
        return alias(self.tensor, self.tensor.oracle.detach())


def alias(tensor: SimTensor, oracle: Tensor) -> SimTensor:
    """Return a device tensor for another view of a tensor's oracle."""
    return wrap(oracle, tensor.cell.block, tensor.handle)


@final
class Exports:
    """What was handed out by address.

    Args:
        dispatcher: The simulation's.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._by_address: dict[int, tuple[weakref.ref[Handle], Cell, Tensor]] = {}

    def remember(self, tensor: SimTensor) -> int:
        """Return a tensor's address, and find its memory by it as long as that lives."""
        address: int = _address(tensor.oracle)
        known = self._by_address.get(address)
        if known is None or known[0]() is not tensor.handle:

            def forget(_: object) -> None:
                self._by_address.pop(address, None)

            self._by_address[address] = (weakref.ref(tensor.handle, forget), tensor.cell, tensor.oracle.detach())
        return address

    def interface(self, tensor: SimTensor) -> dict[str, Any]:
        """Return `__cuda_array_interface__`, version 2: it carries no stream, so it makes no edge."""
        if tensor.requires_grad:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")
        if tensor.dtype not in _KINDS:
            raise TypeError(f"no __cuda_array_interface__ for {tensor.dtype}")
        address, itemsize = self.remember(tensor), tensor.element_size()
        strides = None if tensor.is_contiguous() else tuple(stride * itemsize for stride in tensor.stride())
        return {
            "typestr": _KINDS[tensor.dtype],
            "shape": tuple(tensor.shape),
            "strides": strides,
            "data": (address if tensor.numel() else 0, False),
            "version": 2,
        }

    def from_interface(self, interface: dict[str, Any]) -> SimTensor:
        """Return a tensor over memory that was handed out by address.

        Raises:
            UsageError: The address is not that of a simulated tensor.
        """
        known = self._by_address.get(interface["data"][0])
        handle = known[0]() if known is not None else None
        kind = next((kind for kind, text in _KINDS.items() if text == interface["typestr"]), None)
        if known is None or handle is None or kind is None:
            raise self.dispatcher.unsupported(
                "__cuda_array_interface__", "the address is not that of a simulated tensor"
            )
        shape, strides = interface["shape"], interface.get("strides")
        oracle = known[2]
        view = torch.empty(0, dtype=kind, device="cpu")
        offset = oracle.storage_offset() * oracle.element_size() // view.element_size()
        if strides is None:
            strides = torch.empty(shape, dtype=kind, device="meta").stride()
        else:
            strides = tuple(stride // view.element_size() for stride in strides)
        with self.dispatcher.engine.guard():
            view.set_(oracle.untyped_storage(), offset, shape, strides)
        return wrap(view, known[1].block, handle)

    def export(self, tensor: SimTensor, stream: Any) -> Capsule:
        """Hand out by DLPack. Ordering: the consumer's stream comes behind the producer's current one."""
        if tensor.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        known = streams()
        if stream != _NO_EDGE:
            known.engine.order_streams(known.by_handle(stream), known.engine.stream)
        return Capsule(tensor)

    def take(self, source: Any, original: Any, **options: Any) -> Tensor:
        """`torch.from_dlpack`."""
        if isinstance(source, Capsule):
            return source.take()
        on_device = hasattr(source, "__dlpack_device__") and int(source.__dlpack_device__()[0]) == _CUDA_IN_DLPACK
        if not on_device:
            return original(source, **options)  # type: ignore[no-any-return]
        known = streams()
        capsule = source.__dlpack__(stream=known.handle(known.engine.stream) or 1)
        if not isinstance(capsule, Capsule):
            raise self.dispatcher.unsupported("from_dlpack", "the memory is not that of a simulated tensor")
        return capsule.take()


def patch_exports(patches: Patches, dispatcher: Dispatcher) -> Exports:
    """Replace the ways in and out."""
    exports = Exports(dispatcher)
    original_to = vars(torch.utils.dlpack)["to_dlpack"]
    original_from = vars(torch)["from_dlpack"]

    def from_dlpack(ext_tensor: Any, **options: Any) -> Tensor:
        return exports.take(ext_tensor, original_from, **options)

    def to_dlpack(tensor: Tensor) -> Any:
        return exports.export(tensor, _NO_EDGE) if isinstance(tensor, SimTensor) else original_to(tensor)

    c: Any = torch._C  # noqa: SLF001 - where names that were bound before the simulation end up
    take = c._from_dlpack  # noqa: SLF001
    patches.set(
        c,
        "_from_dlpack",
        lambda capsule, *rest: capsule.take() if isinstance(capsule, Capsule) else take(capsule, *rest),
    )
    for owner in (torch, torch.utils.dlpack):
        patches.present(owner, "from_dlpack", from_dlpack)
        patches.present(owner, "to_dlpack", to_dlpack)
    patches.set(SimTensor, "__dlpack__", lambda self, *, stream=None, **_: exports.export(self, stream))
    patches.set(SimTensor, "data_ptr", lambda self: exports.remember(self))  # noqa: PLW0108 - a bound method would not bind
    patches.set(SimTensor, "__dlpack_device__", lambda _self: (_CUDA_IN_DLPACK, 0))
    patches.set(SimTensor, "__cuda_array_interface__", property(lambda self: exports.interface(self)))  # noqa: PLW0108 - as above
    return exports
