"""Host tensors: which are pinned, what copies to them are under way, and what the host does to them."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from interlock.check._simulate._hosts import Landing
from interlock.check._simulate._torch_arrays import array_region
from interlock.check._simulate._torch_effects import effects_of
from interlock.check._simulate._torch_tensor import region_at

if TYPE_CHECKING:
    from interlock._core._events import Region
    from interlock._core._fence import Fence
    from interlock.check._simulate._engine import Engine
    from interlock.check._simulate._hosts import HostBlock

Tensor = torch.Tensor
_address: Any = torch._C.TensorBase.data_ptr  # noqa: SLF001 - not the patched one
_listed: Any = torch._C.TensorBase.tolist  # noqa: SLF001 - as above


@final
class Hosts:
    """The host side of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.table = engine.hosts

    # ------------------------------------------------------------ who is who

    def find(self, tensor: Tensor) -> HostBlock | None:
        """Return the block of a plain CPU tensor, if it takes part in anything."""
        if not len(self.table) or tensor.layout is not torch.strided:
            return None
        with self.engine.lock:
            return self.table.find(_address(tensor))

    def track(self, tensor: Tensor) -> HostBlock:
        """Return the block of a plain CPU tensor, from now on watched."""
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        with self.engine.lock:
            block = self.table.find(_address(tensor))
            if block is None:
                block = self.table.add(start, max(1, storage.nbytes()))
            marks = vars(storage).setdefault("interlock_blocks", set()) if hasattr(storage, "__dict__") else set()
            if id(block) not in marks:
                marks.add(id(block))
                block.holders += 1
                weakref.finalize(storage, self.table.gone.append, block).atexit = False
        return block

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark a fresh tensor as page-locked."""
        if tensor.numel():
            self.track(tensor).pinned = True
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Tell whether a plain CPU tensor is page-locked."""
        block = self.find(tensor)
        return block is not None and block.pinned

    def region(self, tensor: Tensor, block: HostBlock) -> Region | None:
        """Return the bytes of a plain CPU tensor."""
        return region_at(tensor, block.allocation, _address(tensor) - block.start)

    # ------------------------------------------------------------ what the host does

    def touch(self, tensor: Tensor, mode: str, name: str, *, exact: bool = True) -> None:
        """Say that the host reads or writes a tensor now, if it is watched."""
        if not self.engine.is_quiet:
            self.touched(tensor, mode, name, exact=exact)

    def touched(self, tensor: Tensor, mode: str, name: str, *, exact: bool = True) -> None:
        """As `touch`, also where the simulator itself acts for the program."""
        block = self.find(tensor)
        if block is None:
            return
        region = self.region(tensor, block)
        if region is not None:
            if mode == "read":
                self._check_landed(tensor, block, region, name)
            self.engine.host_access(region, mode, name, exact=exact)

    def _check_landed(self, tensor: Tensor, block: HostBlock, region: Region, name: str) -> None:
        """Tell of a wrong value if the host reads what has not landed."""
        if not block.landings:
            return
        block.settle()
        start = _address(tensor)
        with self.engine.guard():
            for landing in block.landings:
                if landing.start == start and landing.value.shape == tensor.shape and not same(tensor, landing.value):
                    self.engine.session.witness(
                        region, f"{name} saw {shown(tensor)}, a correct run finds {shown(landing.value)}"
                    )

    def touch_array(self, array: Any, mode: str, name: str, *, exact: bool) -> None:
        """Say that the host uses a NumPy view of page-locked memory now."""
        if self.engine.is_quiet or not self.engine.live:
            return
        address = array.view(np.ndarray).__array_interface__["data"][0]
        with self.engine.lock:
            block = self.table.find(address)
        if block is None:
            return
        region = array_region(array, block.allocation, block.start)
        if mode == "read" and block.landings:
            block.settle()
            with self.engine.guard():
                for landing in block.landings:
                    self._compare(landing, region, block, name)
        self.engine.host_access(region, mode, name, exact=exact)

    def _compare(self, landing: Landing, region: Region, block: HostBlock, name: str) -> None:
        """Tell of a wrong value where a copy that has not landed meets a read."""
        first = max(landing.start, block.start + region.offset_bytes)
        last = min(landing.end, block.start + region.offset_bytes + region.size_bytes)
        if first >= last:
            return
        found = (ctypes.c_ubyte * (last - first)).from_address(first)
        value = landing.value.contiguous().view(-1).view(torch.uint8)[first - landing.start : last - landing.start]
        if bytes(found) != bytes(_listed(value)):
            self.engine.session.witness(
                region, f"{name} saw bytes that had not landed, a correct run finds {shown(landing.value)}"
            )

    def is_pinned_at(self, address: int) -> bool:
        """Tell whether an address lies in page-locked memory."""
        with self.engine.lock:
            block = self.table.find(address)
        return block is not None and block.pinned

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation of the host on plain CPU tensors, and say what it touches."""
        if not len(self.table) or self.engine.is_quiet:
            return func(*args, **kwargs)
        effects = effects_of(func)
        if effects.view or effects.reshapes or effects.uninitialised or effects.no_data:
            return func(*args, **kwargs)
        written: set[int] = set()
        for index in effects.written:
            if index < len(args):
                _collect(args[index], written, self, "write", effects.name, set())
        for name in effects.written_names:
            _collect(kwargs.get(name), written, self, "write", effects.name, set())
        for value in (*args, *kwargs.values()):
            _collect(value, set(), self, "read", effects.name, written)
        return func(*args, **kwargs)

    # ------------------------------------------------------------ copies under way

    def expected(self, tensor: Tensor) -> Tensor:
        """Return what a correct program finds in a host tensor: the copies under way count as landed.

        It is the tensor itself if nothing is under way.
        """
        block = self.find(tensor)
        if block is None or not block.landings:
            return tensor
        block.settle()
        start = _address(tensor)
        end = start + max(1, tensor.numel()) * tensor.element_size()
        found = tensor
        for landing in block.landings:
            if landing.start == start and landing.value.shape == tensor.shape and landing.value.dtype == tensor.dtype:
                found = landing.value
            elif landing.start < end and start < landing.end and tensor.is_contiguous():
                found = _overlaid(found, start, end, landing)
        return found

    def land(self, tensor: Tensor, block: HostBlock, value: Tensor, fence: Fence) -> None:
        """Remember a copy to the host that was queued."""
        start = _address(tensor)
        block.settle()
        end = start + tensor.numel() * tensor.element_size()
        block.landings.append(Landing(start, end, fence, value))


def _overlaid(tensor: Tensor, start: int, end: int, landing: Landing) -> Tensor:
    """Return a copy of a contiguous tensor with the bytes of a landing in their place."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    target = copy.view(-1).view(torch.uint8)
    source = landing.value.contiguous().view(-1).view(torch.uint8)
    first, last = max(start, landing.start), min(end, landing.end)
    target[first - start : last - start] = source[first - landing.start : last - landing.start]
    return copy


def _collect(value: Any, seen: set[int], hosts: Hosts, mode: str, name: str, skip: set[int]) -> None:
    if isinstance(value, Tensor):
        if id(value) not in skip and id(value) not in seen:
            seen.add(id(value))
            hosts.touch(value, mode, name)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _collect(one, seen, hosts, mode, name, skip)


def same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two plain tensors hold the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.numel() == 0:
        return True
    first, second = one.contiguous().view(-1), other.contiguous().view(-1)
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def shown(tensor: Tensor) -> str:
    """Return the first values of a plain tensor, for a message."""
    first = _listed(tensor.detach().reshape(-1)[:3])
    dots = ", …" if tensor.numel() > len(first) else ""
    return f"[{', '.join(format(value, '.6g') if isinstance(value, float) else str(value) for value in first)}{dots}]"
