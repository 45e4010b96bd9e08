"""The carrier: a tensor that is really on the CPU and says `cuda:0` when asked.

A `SimTensor` shares the metadata and bytes of its *oracle*, a plain CPU tensor, so autograd, optimisers and modules
treat it as the CPU tensor that it is; each operation on it arrives in `__torch_dispatch__`. Its *cell* is the same view
of the adversary's bytes, made when an operation needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from interlock._core._events import Pattern, Region
from interlock.check._simulate._engine import Block, Engine, Handle
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Tensor = torch.Tensor
CUDA = torch.device("cuda", 0)
_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one
_make_subclass: Any = Tensor._make_subclass  # noqa: SLF001 - how subclasses are made


def poison(root: Tensor) -> None:
    """Fill the whole storage of `root` with poison: NaN as a float, -1 as an integer."""
    raw_bytes(root).fill_(0xFF)


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of the tensor's whole storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (storage.nbytes(),), (1,))


@final
class Cell:
    """A view of a block's adversary bytes, made when it is needed.

    Attributes:
        block: The block.
        oracle: The oracle's view, for its geometry; None once the adversary's is made.
        value: The adversary's view; None before.
    """

    __slots__ = ("block", "oracle", "value")

    def __init__(self, block: Block, oracle: Tensor) -> None:
        self.block = block
        self.oracle: Tensor | None = oracle
        self.value: Tensor | None = None

    def get(self) -> Tensor:
        """Return the adversary's view; bytes that nothing wrote yet are poison."""
        value = self.value
        if value is None:
            oracle: Any = self.oracle
            root = self.block.root
            if root is None:
                root = self.block.root = torch.empty(self.block.nbytes, dtype=torch.uint8, device="cpu")
                root.fill_(0xFF)
            value = torch.empty(0, dtype=oracle.dtype, device="cpu")
            value.set_(root.untyped_storage(), oracle.storage_offset(), oracle.size(), oracle.stride())
            if oracle.is_conj():
                value = value.conj()
            if oracle.is_neg():
                value = torch._neg_view(value)  # noqa: SLF001 - the view that `imag` of a conjugate makes
            self.value, self.oracle = value, None
        return value

    def put(self, result: Tensor) -> None:
        """Take an operation's result as the content."""
        block = self.block
        if self.value is None and block.root is None and result.untyped_storage().nbytes() == block.nbytes:
            self.value, self.oracle, block.root = result, None, result
            return
        value = self.get()
        if value.shape == result.shape:  # else poison in the input gave another shape: the content stays poison
            _copy(value, result)


def region_of(oracle: Tensor, block: Block) -> Region | None:
    """Return which bytes of the block a tensor covers; None if it has none."""
    return region_at(oracle, block.allocation, int(oracle.storage_offset()) * oracle.element_size())


def region_at(tensor: Tensor, allocation: Any, offset_bytes: int) -> Region | None:
    """Return the bytes that a strided tensor covers from `offset_bytes` of an allocation on."""
    count, itemsize = tensor.numel(), tensor.element_size()
    if count == 0:
        return None
    if tensor.is_contiguous():
        return Region(allocation, offset_bytes, count * itemsize)
    shape, strides = tuple(tensor.shape), tuple(stride * itemsize for stride in tensor.stride())
    span = itemsize + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if span == count * itemsize:  # dense in another order, as channels-last
        return Region(allocation, offset_bytes, span)
    return Region(allocation, offset_bytes, span, Pattern(itemsize, shape, strides))


class SimTensor(Tensor):
    """A tensor of the simulated device. Made by `wrap` only."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # noqa: SLF001
    # as a device tensor has none either: `has_torch_function` is False

    oracle: Tensor
    cell: Cell
    handle: Handle
    known_region: Region | None

    dispatch: Callable[..., Any]
    """Set by the patches: what runs an operation."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override] # of the class
        """Run one operation."""
        return SimTensor.dispatch(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """`cuda:0`."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """False."""
        return False

    @property
    def region(self) -> Region | None:
        """The bytes that it covers."""
        try:
            found = self.known_region
        except AttributeError:
            found = None
        if found is None or found.allocation != self.cell.block.allocation:
            self.known_region = found = region_of(self.oracle, self.cell.block)
        return found

    def get_device(self) -> int:
        """0."""
        return 0

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # a simulation replaces it while it lasts
        return f"<a tensor of a simulation that has ended, shape {tuple(self.shape)}>"


def wrap(oracle: Tensor, block: Block, handle: Handle) -> SimTensor:
    """Return the device tensor of an oracle whose bytes are those of `block`."""
    tensor: SimTensor = _make_subclass(SimTensor, oracle)
    tensor.oracle = oracle
    tensor.cell = Cell(block, oracle)
    tensor.handle = handle
    return tensor


def wrap_new(engine: Engine, oracle: Tensor, queue: Any) -> SimTensor:
    """Return the device tensor of a fresh oracle, on memory allocated on `queue`."""
    block = engine.allocate(queue, oracle.untyped_storage().nbytes())
    return wrap(oracle, block, Handle(block, engine))


def reseat(tensor: SimTensor, oracle: Tensor, block: Block, handle: Handle) -> None:
    """Let a tensor object stand for another view or other memory."""
    tensor.oracle, tensor.cell, tensor.handle = oracle, Cell(block, oracle), handle
    vars(tensor).pop("known_region", None)


def regions(tensors: Iterable[SimTensor]) -> list[Region]:
    """Return the bytes of all, without those that have none."""
    return [found for tensor in tensors if (found := tensor.region) is not None]


def check_supported(oracle: Tensor, operation: str, engine: Engine) -> None:
    """Refuse what has no strided bytes.

    Raises:
        UsageError: The tensor is sparse, quantised or otherwise not strided.
    """
    if oracle.layout is not torch.strided or oracle.is_quantized or oracle.is_mkldnn:
        why = f"a tensor of layout {oracle.layout} has no plain bytes on the simulated device"
        engine.session.unsupported(operation, why)
        raise UsageError(f"{operation} cannot be simulated", why=why, hint="keep such tensors on the CPU in the check")
