"""`torch.save` and `torch.load` of device tensors: files are those that a GPU would write.

Saving copies to the host and waits. Loading to `cuda` puts the bytes on the simulated device; what shares a storage in
the file shares it there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, final

import torch

from interlock.check._simulate._torch_exports import alias
from interlock.check._simulate._torch_tensor import CUDA, SimTensor, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_methods import Methods

Tensor = torch.Tensor


class _Marks(threading.local):
    """Storages on the host that stand for device storages, by address, in one call of save or load."""

    def __init__(self) -> None:
        self.saved: dict[int, Any] = {}
        self.addresses: set[int] = set()
        self.loaded: dict[int, SimTensor] = {}
        self.depth = 0


@final
class Files:
    """Saving and loading in one simulation.

    Args:
        methods: The simulation's.
    """

    def __init__(self, methods: Methods) -> None:
        self.methods = methods
        self.marks = _Marks()

    def call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run one save or load."""
        marks = self.marks
        marks.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            marks.depth -= 1
            if marks.depth == 0:
                marks.saved.clear()
                marks.addresses.clear()
                marks.loaded.clear()

    def reduce(self, tensor: SimTensor) -> tuple[Any, ...]:
        """`__reduce_ex__` of a device tensor."""
        hooks: OrderedDict[str, Any] = OrderedDict()
        if isinstance(tensor, torch.nn.Parameter):
            return (torch._utils._rebuild_parameter, (tensor.detach(), tensor.requires_grad, hooks))  # noqa: SLF001
        block = tensor.cell.block
        typed = self.marks.saved.get(id(block))
        if typed is None:
            whole = alias(tensor, raw_bytes(tensor.oracle))
            storage = self.methods.value(whole).untyped_storage()
            typed = self.marks.saved[id(block)] = storage
            self.marks.addresses.add(storage.data_ptr())
        wrapped = torch.storage.TypedStorage(wrap_storage=typed, dtype=tensor.dtype, _internal=True)  # type: ignore[no-untyped-call]
        oracle = tensor.oracle
        arguments = (
            wrapped,
            oracle.storage_offset(),
            tuple(oracle.size()),
            oracle.stride(),
            tensor.requires_grad,
            hooks,
        )
        if self.marks.depth == 0:  # pickled by something else: it goes to the host, as the device is this process's own
            self.marks.saved.clear()
            self.marks.addresses.clear()
        return (torch._utils._rebuild_tensor_v2, arguments)  # noqa: SLF001 - what PyTorch's own files name

    def is_marked(self, storage: Any) -> bool:
        """Tell whether a host storage stands for one of the device."""
        return bool(self.marks.addresses) and _untyped(storage).data_ptr() in self.marks.addresses

    def restore(self, original: Callable[..., Any], storage: Any, location: str) -> Any:
        """`default_restore_location`."""
        if not location.startswith("cuda"):
            return original(storage, location)
        self.marks.addresses.add(_untyped(storage).data_ptr())
        return storage

    def rebuild(self, original: Callable[..., Tensor], storage: Any, offset: int, size: Any, stride: Any) -> Tensor:
        """`_rebuild_tensor`."""
        if not self.is_marked(storage):
            return original(storage, offset, size, stride)
        host = original(storage, offset, size, stride)
        address = _untyped(storage).data_ptr()
        whole = self.marks.loaded.get(address)
        if whole is None:
            moved = self.methods.move(raw_bytes(host), CUDA, None)
            whole = self.marks.loaded[address] = moved  # type: ignore[assignment]
        view = torch.empty(0, dtype=host.dtype, device="cpu")
        with self.methods.engine.guard():
            view.set_(whole.oracle.untyped_storage(), offset, size, stride)  # type: ignore[union-attr]
        return alias(whole, view)  # type: ignore[arg-type]


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def patch_files(patches: Patches, methods: Methods) -> None:
    """Replace what saves and loads."""
    files = Files(methods)
    serialization: Any = torch.serialization
    utils: Any = torch._utils  # noqa: SLF001 - what the files name
    save, load = torch.save, torch.load
    tag, restore, rebuild = serialization.location_tag, serialization.default_restore_location, utils._rebuild_tensor  # noqa: SLF001
    reduce = Tensor.__reduce_ex__
    for owner in (torch, serialization):
        patches.set(owner, "save", lambda *args, **kwargs: files.call(save, *args, **kwargs))
        patches.set(owner, "load", lambda *args, **kwargs: files.call(load, *args, **kwargs))
    patches.set(serialization, "location_tag", lambda storage: "cuda:0" if files.is_marked(storage) else tag(storage))
    patches.set(
        serialization, "default_restore_location", lambda storage, location: files.restore(restore, storage, location)
    )
    patches.set(utils, "_rebuild_tensor", lambda *args: files.rebuild(rebuild, *args))
    patches.set(SimTensor, "__reduce_ex__", lambda self, _protocol: files.reduce(self))

    def reduce_host(self: Tensor, protocol: Any) -> Any:
        methods.hosts.touch(self, "read", "pickle")
        return reduce(self, protocol)  # type: ignore[no-untyped-call]

    patches.set(Tensor, "__reduce_ex__", reduce_host)
