"""Device tensors as `DeviceArray`, which is what a drain takes from a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from interlock._core._protocols import DeviceArray
from interlock.check._simulate._torch_tensor import SimTensor
from interlock.errors import UsageError

if TYPE_CHECKING:
    from interlock.check._simulate._torch_dispatch import Dispatcher

_numpy: Any = torch._C.TensorBase.numpy  # noqa: SLF001 - not the patched one


@final
class DeviceArrays:
    """Takes the values of device tensors.

    Args:
        dispatcher: The simulation's.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __call__(self, value: object) -> DeviceArray | None:
        """Return a copy of the value that a device tensor has now, None for anything else.

        Ordering: the copy is queued on the current stream; the tensor may be changed and freed after the call.

        Raises:
            UsageError: NumPy has no such dtype.
        """
        if not isinstance(value, SimTensor) or not value.numel():
            return None
        engine = self._dispatcher.engine
        name = str(value.dtype).removeprefix("torch.")
        try:
            np.dtype(name)
        except TypeError as error:
            raise UsageError(
                f"a tensor of {value.dtype} has no NumPy form", why=str(error), hint="cast it first, as with .float()"
            ) from error
        memory = engine.device.allocate(value.numel() * value.element_size())
        cell, queue = value.cell, engine.stream

        def run() -> None:
            memory.view()[:] = _numpy(cell.get().detach().contiguous().view(-1).view(torch.uint8)).data

        self._dispatcher.submit(queue, run, "snapshot", [value], [], host_writes=(memory.region,))
        return DeviceArray(engine.device, memory, tuple(value.shape), name, engine.record(queue))
