"""CuPy: arrays on CUDA only; streams order what is done to them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NoReturn, final

import cupy
import numpy as np
import numpy.typing as npt

from interlock._core._fence import Fence
from interlock._core._handover import StreamDevice
from interlock._core._protocols import Export
from interlock.errors import UsageError
from interlock.frameworks import _cupy_drain
from interlock.frameworks._cupy_receiver import CupyAllocator, Returned
from interlock.frameworks._own_memory import OwnMemoryReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock._core._fence import Timeline
    from interlock._core._handover import Placement, Receiver
    from interlock._core._protocols import Device, DeviceArray


@final
class CupyFramework:
    """CUDA arrays in CuPy's own pool. Done is proved by the copy that reads the slot; no array holds it.

    The stream that is current when a batch is handed over may read it at once, and may have reads queued when it is
    dropped. Who reads it on another stream orders the two, as for any CuPy array.
    """

    name = "cupy"
    immutable = False

    def __init__(self) -> None:
        self._returned: defaultdict[int, Returned] = defaultdict(Returned)

    def owns(self, value: object) -> bool:
        """As in `Framework`."""
        return isinstance(value, cupy.ndarray)

    def runs(self, model: object) -> bool:  # noqa: ARG002
        """As in `Framework`; False: no callable wants CuPy and nothing else."""
        return False

    def home(self, model: object) -> str:  # noqa: ARG002
        """As in `Framework`: the default device."""
        return self.default_device()

    def prepare(self, model: Callable[[Any], Any], device: str) -> Callable[[Any], Any]:  # noqa: ARG002
        """As in `Framework`: `model` itself."""
        return model

    def fingerprint(self, model: object) -> None:  # noqa: ARG002
        """As in `Framework`; None."""
        return

    def default_device(self, sharding: Any = None) -> str:  # noqa: ARG002 - CuPy has none
        """CuPy's current device, as `cuda:0`."""
        return f"cuda:{cupy.cuda.runtime.getDevice()}"

    def lend(self, array: npt.NDArray[Any]) -> NoReturn:
        """As in `Framework`; refused."""
        raise UsageError(
            f"CuPy has no arrays on the host, as one of {array.dtype} would be",
            hint="leave device out or pass 'cuda', or feed to='numpy'",
        )

    def receiver(
        self, device: Device, stream: Timeline, placement: Placement, open_device: Callable[[str], Device]
    ) -> Receiver:
        """As in `SupportsReceiver`: arrays in CuPy's own pool."""
        del open_device
        if not isinstance(device, StreamDevice):
            raise UsageError(f"CuPy has no arrays on {device.name}", hint="leave device out, or pass 'cuda'")
        if placement.zero_copy:
            raise UsageError(
                "CuPy has no use for zero_copy",
                why="its batches are copied over the link straight to CuPy's own memory, and no further",
                hint="leave zero_copy out",
            )
        allocator = CupyAllocator(device, stream, self._returned[device.index])
        return OwnMemoryReceiver(allocator, device, stream, fixed=placement.fixed)

    def read_back(self, array: Any) -> npt.NDArray[Any]:
        """As in `Framework`."""
        return np.asarray(array.get())

    def device_arrays(self, value: Any, *, borrow: bool, open_device: Callable[[str], Device]) -> DeviceArray | None:
        """As in `SupportsDeviceArrays`: the value in the order of the current stream of the array's device."""
        return _cupy_drain.device_array(value, borrow=borrow, open_device=open_device)

    def export(self, value: Any, *, borrow: bool) -> Export:  # noqa: ARG002 - a copy either way
        """As in `Framework`; `device_arrays` is the way that does not wait. Blocks: until the value is on the host."""
        array = np.asarray(value.get())
        return Export(array.shape, array.dtype, Fence.EMPTY, stable=True, read=lambda: array)

    def join(self, arrays: Sequence[Any]) -> Any:
        """As in `SupportsJoin`."""
        with cupy.cuda.Device(arrays[0].device.id):
            return cupy.concatenate(arrays)
