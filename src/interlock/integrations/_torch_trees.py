"""Predictions taken apart into bytes that can wait in slots, and put together again when they have landed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray, Export
from interlock._core._tree import flatten
from interlock.devices import open_device
from interlock.drain import Ragged, RaggedRows
from interlock.frameworks import device_array_of, framework_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from interlock._core._protocols import Pieces

    Map = Callable[[Any, Any, Callable[[Any], Any]], Any]
    """`apply_to_collection` of Lightning: a collection, the types to replace, what replaces them."""

    Bytes = npt.NDArray[np.uint8]


class _Movable(ABC):
    """What is no collection and has a method `to`, as graphs and packed batches of other libraries have."""

    @abstractmethod
    def to(self, device: str) -> Any:
        """Return the same on another device."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        is_collection = issubclass(kind, (Mapping, list, tuple)) or is_dataclass(kind)
        return callable(getattr(kind, "to", None)) and not is_collection


class _Filler:
    """Stands in a tree where something was taken out."""


_ARRAYS = (torch.Tensor, np.ndarray)


@final
@dataclass(slots=True)
class Part:
    """One array of a tree, as bytes.

    Attributes:
        flat: The bytes, one axis: a tensor or an array, in the memory where they were found.
        size_bytes: How many.
        restore: Makes the array from bytes in host memory, without a copy.
    """

    flat: Any
    size_bytes: int
    restore: Callable[[Bytes], Any]

    @property
    def on_device(self) -> bool:
        """Whether the bytes are in a device's memory."""
        return isinstance(self.flat, torch.Tensor)

    def take(self) -> Export | DeviceArray | Pieces:
        """Take the value that the array has now, in the order of its producer.

        Raises:
            DeviceError: The device has no memory for the snapshot.
        """
        if not self.on_device:
            return Export(self.flat.shape, self.flat.dtype, Fence.EMPTY, stable=False, read=lambda: self.flat)
        found = device_array_of(self.flat)
        if found is None:
            torch_framework: Any = framework_named("torch")
            found = torch_framework.device_arrays(self.flat, borrow=False, open_device=open_device)
        assert found is not None  # noqa: S101 - `_of_tensor` let no other tensor through
        return found

    def forget(self) -> None:
        """Let go of the array: its value was taken."""
        self.flat = None


@final
class Tree:
    """A collection whose arrays were taken out, so that it holds no memory of theirs.

    Args:
        value: Any nesting that Lightning knows: dicts, sequences, named tuples, dataclasses. What is no tensor, no
            NumPy array and has no method `to` stays as it is.
        mapped: `apply_to_collection`.
        device: Where the program works.

    Attributes:
        parts: Its arrays.

    Blocks: for a tensor that is not plain or is neither on the CPU nor on CUDA, and for what only its own method `to`
        can move: these are moved to the host here.
    """

    def __init__(self, value: Any, mapped: Map, device: torch.device) -> None:
        self.parts: list[Part] = []
        self._mapped = mapped
        self._device = device
        self._fillers: dict[int, Callable[[list[Bytes]], Any]] = {}
        self._shape = mapped(value, (*_ARRAYS, _Movable), self._take_out)

    def fill(self, found: list[Bytes], *, own: bool) -> Any:
        """Return the collection with arrays over `found`, one for each part, or with copies of them if `own`."""
        if own:
            found = [np.array(one) for one in found]
        kinds = (*_ARRAYS, _Filler)
        return self._mapped(self._shape, kinds, lambda filler: self._fillers[id(filler)](found))

    def _take_out(self, value: Any) -> Any:
        part, filler = self._part_of(value)
        if isinstance(part, Part):
            at = len(self.parts)
            self.parts.append(part)
            self._fillers[id(filler)] = lambda found: part.restore(found[at])
        else:
            self._fillers[id(filler)] = lambda _: part
        return filler

    def _part_of(self, value: Any) -> tuple[Any, Any]:
        """Return a part, or what needs none; and what stands for it: of its kind, since collections may look at it."""
        if isinstance(value, torch.Tensor):
            return _of_tensor(value, self._device), torch.empty(0)
        if isinstance(value, np.ndarray):
            return _of_array(value), np.empty(0)
        return value.to("cpu"), _Filler()


def map_leaves(tree: Any, kinds: Any, replace: Callable[[Any], Any]) -> Any:
    """Return nested dicts, tuples and lists with what `replace` makes of each leaf of those `kinds`.

    Ragged outputs are looked into.
    """

    def mapped(leaf: Any) -> Any:
        if isinstance(leaf, (Ragged, RaggedRows)):
            parts = {part.name: getattr(leaf, part.name) for part in fields(leaf)}
            return type(leaf)(**map_leaves(parts, kinds, replace))
        return replace(leaf) if isinstance(leaf, kinds) else leaf

    leaves, structure = flatten(tree)
    return structure.rebuild([mapped(leaf) for leaf in leaves])


def in_order(tree: Any, device: torch.device) -> Any:
    """Return a tree whose tensors have their value in the order of their stream: pinned ones on the device.

    What a program moved to pinned memory with `non_blocking` may not be there yet, and nothing but the stream tells
    when it is. So it goes back to the device behind that move, and the host waits for neither.
    """
    return map_leaves(tree, torch.Tensor, lambda one: _in_order(one, device)) if device.type == "cuda" else tree


def _in_order(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and value.device.type == "cpu" and value.is_pinned():
        return value.to(device, non_blocking=True)
    return value


def _of_tensor(value: torch.Tensor, device: torch.device) -> Part | torch.Tensor:
    tensor = _in_order(value.detach(), device)
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    if not is_plain or not tensor.numel() or tensor.device.type not in {"cpu", "cuda"}:
        return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)  # one element may have any stride
    dtype, shape = plain.dtype, plain.shape

    def restore(found: Bytes) -> torch.Tensor:
        return torch.from_numpy(found).view(dtype).view(shape)

    return Part(flat.numpy() if flat.device.type == "cpu" else flat, flat.numel(), restore)


def _of_array(value: npt.NDArray[Any]) -> Part | npt.NDArray[Any]:
    if value.dtype.kind not in "biufc" or not value.size:
        return value.copy()
    plain = np.ascontiguousarray(value)
    dtype, shape = plain.dtype, value.shape

    def restore(found: Bytes) -> npt.NDArray[Any]:
        return found.view(dtype).reshape(shape)

    return Part(plain.reshape(-1).view(np.uint8), plain.nbytes, restore)


@contextmanager
def as_in_the_loop(device: torch.device, *, inference_mode: bool) -> Iterator[None]:
    """Give this thread what Lightning gives the thread of its loop: no gradients, and the device that is current."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode() if inference_mode else torch.no_grad())
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        yield


def is_on_device(ids: Any) -> bool:
    """Tell whether reading ids means to wait for a device."""
    return isinstance(ids, torch.Tensor) and ids.device.type != "cpu"
