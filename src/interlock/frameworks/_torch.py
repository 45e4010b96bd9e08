"""PyTorch: on the CPU every operation is done when it returns; on CUDA streams order them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, final

import torch

from interlock._core._fence import Fence
from interlock._core._handover import StreamDevice
from interlock._core._protocols import Export
from interlock.errors import UsageError
from interlock.frameworks import _torch_drain
from interlock.frameworks._own_memory import OwnMemoryReceiver
from interlock.frameworks._torch_receiver import TorchAllocator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from interlock._core._fence import Timeline
    from interlock._core._handover import Placement, Receiver
    from interlock._core._protocols import Device, DeviceArray


@final
class TorchFramework:
    """CPU tensors over lent memory, and CUDA tensors in PyTorch's own.

    Done is proved, on the CPU, by the end of the exported memory's owner, which the tensor's storage holds; on CUDA the
    slot is only read by one copy.
    """

    name = "torch"
    immutable = False

    def owns(self, value: object) -> bool:
        """As in `Framework`."""
        return isinstance(value, torch.Tensor)

    def runs(self, model: object) -> bool:
        """As in `Framework`: modules, compiled and scripted ones too."""
        return isinstance(model, torch.nn.Module)

    def home(self, model: object) -> str:
        """As in `Framework`: where a module's first parameter or buffer is."""
        if isinstance(model, torch.nn.Module):
            for value in (*model.parameters(), *model.buffers()):
                return "host" if value.device.type == "cpu" else str(value.device)
        return self.default_device()

    def prepare(self, model: Callable[[Any], Any], device: str) -> Callable[[Any], Any]:
        """As in `Framework`: a module goes to evaluation mode; calls are made under inference mode."""
        if isinstance(model, torch.nn.Module):
            model.to(device if device.startswith("cuda") else "cpu").eval()

        def run(batch: Any) -> Any:
            with torch.inference_mode():
                return model(batch)

        return run

    def fingerprint(self, model: object) -> str | None:
        """As in `Framework`: names, dtypes, shapes and bytes of a module's parameters and buffers."""
        if not isinstance(model, torch.nn.Module):
            return None
        digest = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            digest.update(f"{name}\0".encode())
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized:
                digest.update(f"{value.dtype}{list(value.shape)}\0".encode())
                flat = value.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def default_device(self, sharding: Any = None) -> str:  # noqa: ARG002 - torch has none
        """`host`, or the device set by `torch.set_default_device`, as `cuda:0`."""
        device = torch.get_default_device()
        if device.type == "cuda":
            return f"cuda:{device.index}"
        return "host" if device.type == "cpu" else device.type

    def receiver(
        self, device: Device, stream: Timeline, placement: Placement, open_device: Callable[[str], Device]
    ) -> Receiver | None:
        """As in `SupportsReceiver`: CUDA tensors in PyTorch's own allocator."""
        del open_device
        if not isinstance(device, StreamDevice):
            return None
        if placement.zero_copy:
            raise UsageError(
                "torch has no use for zero_copy",
                why="its batches are copied over the link straight to torch's own memory, and no further",
                hint="leave zero_copy out",
            )
        if not torch.cuda.is_available():
            raise UsageError(
                f"this torch cannot use {device.name}",
                why="it was built without CUDA, or does not see the device",
                hint="install a build with CUDA, or pass device='host'",
            )
        allocator = TorchAllocator(device.index, device.handle(stream))
        return OwnMemoryReceiver(allocator, device, stream, fixed=placement.fixed)

    def lend(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """As in `Framework`."""
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError) as error:  # ValueError: bytes in foreign order
            raise UsageError(
                f"torch cannot take an array of dtype {array.dtype.str}", why=str(error), hint="cast it in the source"
            ) from error

    def read_back(self, array: Any) -> npt.NDArray[Any]:
        """As in `Framework`: the bytes, whatever the dtype."""
        plain = array.detach().resolve_conj().resolve_neg().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # one element is contiguous whatever its stride, but no bytes
        held: npt.NDArray[Any] = flat.view(torch.uint8).cpu().numpy()
        return held

    def device_arrays(self, value: Any, *, borrow: bool, open_device: Callable[[str], Device]) -> DeviceArray | None:
        """As in `SupportsDeviceArrays`: the value in the order of the current stream of the tensor's device."""
        return _torch_drain.device_array(value, borrow=borrow, open_device=open_device)

    def export(self, value: Any, *, borrow: bool) -> Export:
        """As in `Framework`."""
        tensor: torch.Tensor = value.detach() if value.requires_grad else value
        if not tensor.is_cpu:
            raise UsageError(
                f"a tensor on {tensor.device} cannot be drained",
                why="tensors on the CPU, on CUDA and on simulated devices can be",
                hint="move it with .cpu() first",
            )
        try:
            array = _torch_drain.host_array(tensor)
        except (TypeError, RuntimeError) as error:
            raise UsageError(
                f"a tensor of {tensor.dtype}, layout {tensor.layout}, has no NumPy form",
                why=str(error),
                hint="cast it first, as with .float()",
            ) from error
        return Export(array.shape, array.dtype, Fence.EMPTY, stable=borrow, read=lambda: array)

    def join(self, arrays: Sequence[Any]) -> torch.Tensor:
        """As in `SupportsJoin`."""
        return torch.cat([one.detach() for one in arrays])

    def jagged(self, value: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As in `SupportsJagged`: nested tensors."""
        return _torch_drain.jagged(value)


def process_rank() -> tuple[int, int] | None:
    """Return rank and number of processes if `torch.distributed` is initialised."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()
