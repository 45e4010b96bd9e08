"""Storages of device tensors: identity and size, and the emptying that sharded training does.

`storage.resize_(0)` gives the memory back while tensors over it live, `resize_(n)` takes new memory for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from interlock._core._events import new_allocation_id, observed
from interlock._core._sites import here
from interlock.check._simulate._torch_tensor import CUDA, SimTensor, poison

if TYPE_CHECKING:
    import torch

    from interlock.check._simulate._engine import Engine
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_dispatch import Dispatcher


@final
class DeviceStorage:
    """What `untyped_storage` of a device tensor returns.

    Args:
        tensor: Any tensor over it.
        dispatcher: The simulation's.
    """

    def __init__(self, tensor: SimTensor, dispatcher: Dispatcher) -> None:
        self._storage = tensor.oracle.untyped_storage()
        self._tensor = tensor
        self._dispatcher = dispatcher

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStorage) and other.data_ptr() == self.data_ptr()

    def __hash__(self) -> int:
        return hash(self.data_ptr())

    def __len__(self) -> int:
        return self.nbytes()

    @property
    def device(self) -> torch.device:
        """`cuda:0`."""
        return CUDA

    @property
    def is_cuda(self) -> bool:
        """True."""
        return True

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor."""
        return self._tensor.dtype

    @property
    def _cdata(self) -> int:
        return int(self._storage._cdata)  # noqa: SLF001 - its identity in C++, which some programs compare

    def untyped(self) -> DeviceStorage:
        """Return itself."""
        return self

    def data_ptr(self) -> int:
        """Return the address."""
        return 0 if self._tensor.cell.block.emptied else self._storage.data_ptr()

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return 0 if self._tensor.cell.block.emptied else self._storage.nbytes()

    size = nbytes

    def element_size(self) -> int:
        """Return 1."""
        return 1

    def is_shared(self) -> bool:
        """Device memory can always be shared."""
        return True

    def resize_(self, size: int) -> DeviceStorage:
        """Give the memory back, or take as much as there was.

        Raises:
            UsageError: Another size is asked for.
        """
        block, engine = self._tensor.cell.block, self._dispatcher.engine
        if size == 0 and not block.emptied:
            block.emptied = True
            _give_back(engine, self._tensor)
        elif size == self._storage.nbytes():
            block.emptied = False
        elif size != 0:
            raise self._dispatcher.unsupported("UntypedStorage.resize_", "tensors over it would not fit it any more")
        return self

    _resize_ = resize_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._dispatcher.unsupported(f"UntypedStorage.{name}", "a storage is a way past all that is watched")


def _give_back(engine: Engine, tensor: SimTensor) -> None:
    """Free a block that tensors still name; what they hold from now on is other memory."""
    block = tensor.cell.block
    engine.give_back(block, here() if observed() else ())
    with engine.guard():
        poison(tensor.oracle)
    block.allocation = new_allocation_id()


def patch_storages(patches: Patches, dispatcher: Dispatcher) -> None:
    """Let device tensors have storages that are watched."""
    for name in ("untyped_storage", "storage", "_typed_storage"):
        patches.set(SimTensor, name, lambda self: DeviceStorage(self, dispatcher))
