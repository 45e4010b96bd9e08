"""The simulated device as feeds drive CUDA: by addresses and handles that PyTorch knows too.

What PyTorch's adapter does on a GPU runs here as it is: it allocates tensors on our copy stream, has them filled
through this device, and records streams on them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from interlock._core._fence import Fence
from interlock._core._queue import is_past
from interlock.check._simulate._torch_streams import streams
from interlock.check._simulate._torch_tensor import SimTensor
from interlock.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from interlock._core._events import Region
    from interlock._core._memory import HostMemory
    from interlock._core._protocols import Memory
    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_hosts import Hosts

_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one


@final
class TensorMemory:
    """The bytes of a tensor, as memory.

    Args:
        device: Whose.
        data: The bytes, as a tensor of one dimension: of the simulated device, or of the host.
    """

    def __init__(self, device: StandIn, data: torch.Tensor) -> None:
        self._device = device
        self.data = data

    @property
    def region(self) -> Region:
        """As in `Memory`."""
        return self._device.region_of(self.data)

    @property
    def size_bytes(self) -> int:
        """As in `Memory`."""
        return self.data.numel()

    @property
    def address(self) -> int:
        """As in `Memory`."""
        return self.data.data_ptr()

    def slice(self, offset_bytes: int, size_bytes: int) -> TensorMemory:
        """As in `Memory`."""
        return TensorMemory(self._device, self.data[offset_bytes : offset_bytes + size_bytes])

    def view(self) -> memoryview:
        """As in `Memory`; refused."""
        raise DeviceError("the host cannot address a tensor of the simulated device")


@final
class StandIn:
    """As in `Device` and `StreamDevice`, where a simulation is `cuda:0`.

    Args:
        dispatcher: The simulation's.
        hosts: Its host memory.
    """

    index = 0
    host_visible = False

    def __init__(self, dispatcher: Dispatcher, hosts: Hosts) -> None:
        self._dispatcher = dispatcher
        self._hosts = hosts
        self._engine = dispatcher.engine
        self._device = self._engine.device
        self._kept: deque[tuple[OperationQueue, int, tuple[torch.Tensor, ...]]] = deque()

    @property
    def name(self) -> str:
        """`cuda:0`."""
        return self._device.name

    def allocate(self, size_bytes: int) -> HostMemory:
        """As in `Device`."""
        return self._device.allocate(size_bytes)

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> HostMemory:
        """As in `Device`."""
        return self._device.allocate_host(size_bytes, shared=shared)

    def stream(self, name: str) -> OperationQueue:
        """As in `Device`."""
        return self._device.stream(name)

    def adopt(self, handle: int) -> OperationQueue:
        """As in `StreamDevice`."""
        return streams().by_handle(handle)

    def handle(self, stream: Any) -> int:
        """As in `StreamDevice`."""
        return streams().handle(stream)

    def wrap(self, address: int, size_bytes: int, owner: object) -> TensorMemory:
        """As in `StreamDevice`; the owner must be the tensor at that address.

        Raises:
            UsageError: It is no contiguous tensor of so many bytes.
        """
        if isinstance(owner, torch.Tensor) and owner.is_contiguous() and owner.data_ptr() == address:
            data = owner.detach().view(-1).view(torch.uint8)
            if data.numel() == size_bytes:
                return TensorMemory(self, data)
        raise UsageError("the simulated device takes memory of contiguous tensors only")

    def region_of(self, data: torch.Tensor) -> Region:
        """Return the bytes that a tensor from `wrap` covers."""
        if isinstance(data, SimTensor):
            region = data.region
        else:
            block = self._hosts.find(data)
            region = self._hosts.region(data, block) if block is not None else None
        if region is None:
            raise DeviceError("an empty tensor covers no bytes")
        return region

    def copy(self, target: Memory, source: Memory, stream: Any) -> None:
        """As in `Device`: to a tensor of the simulated device, from another, from pinned memory or from staging memory.

        Raises:
            UsageError: The target is no tensor, and the source is one.
        """
        if isinstance(target, TensorMemory):
            if isinstance(source, TensorMemory):
                self._copy_tensor(target.data, source.data, stream)
            else:
                self._copy_in(target.data, source, stream)
        elif isinstance(source, TensorMemory):
            raise UsageError("a tensor of the simulated device is copied to other tensors only")
        else:
            self._device.copy(target, source, stream)

    def _copy_tensor(self, target: torch.Tensor, source: torch.Tensor, queue: OperationQueue) -> None:
        """Let PyTorch copy, on that stream."""
        before = self._engine.stream
        self._engine.switch(queue)
        try:
            target.copy_(source, non_blocking=True)
        finally:
            self._engine.switch(before)
        held = (target, source) if isinstance(source, SimTensor) else (target,)  # the queue holds what is on the host
        self._keep(queue, queue.queued, *held)

    def _copy_in(self, target: Any, source: Memory, queue: OperationQueue) -> None:
        """Queue a copy of staging memory, which is read when the stream gets there."""
        with self._engine.guard():
            staged = torch.from_numpy(np.frombuffer(source.view(), np.uint8))
            _copy(target.oracle, staged)
        cell = target.cell

        def run() -> None:
            _copy(cell.get(), staged)

        tick = self._dispatcher.submit(queue, run, "copy", [target], [target], host_reads=(source.region,))
        self._keep(queue, tick, target)

    def _keep(self, queue: OperationQueue, tick: int, *tensors: torch.Tensor) -> None:
        """Hold tensors until a copy is done, as the driver's device does."""
        self._kept.append((queue, tick, tensors))
        self._collect()

    def _collect(self) -> None:
        """Let go of tensors whose copy is done."""
        while self._kept and is_past(*self._kept[0][:2]):
            done = self._kept.popleft()
            self._engine.saw(Fence([done[:2]]))

    def wait(self, stream: Any, fence: Fence) -> None:
        """As in `Device`."""
        self._engine.order(stream, fence)

    def record(self, stream: Any) -> Fence:
        """As in `Device`."""
        self._collect()
        return self._engine.record(stream)
