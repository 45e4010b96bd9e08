"""PyTorch on the CPU: tensors over host memory; every operation is done when it returns."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, final

import torch

from interlock._core._fence import Fence
from interlock._core._protocols import Export
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


@final
class TorchFramework:
    """CPU tensors. Done is proved by the end of the exported memory's owner, which the tensor's storage holds."""

    name = "torch"

    def owns(self, value: object) -> bool:
        """As in `Framework`."""
        return isinstance(value, torch.Tensor)

    def runs(self, model: object) -> bool:
        """As in `Framework`: modules, compiled and scripted ones too."""
        return isinstance(model, torch.nn.Module)

    def prepare(self, model: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """As in `Framework`: a module goes to evaluation mode; calls are made under inference mode."""
        if isinstance(model, torch.nn.Module):
            model.eval()

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

    def default_device(self, sharding: Any = None) -> str:
        """`host`, or the type of the device set by `torch.set_default_device`."""
        kind = torch.get_default_device().type
        return "host" if kind == "cpu" else kind

    def lend(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """As in `Framework`."""
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError) as error:  # ValueError: bytes in foreign order
            raise UsageError(
                f"torch cannot take an array of dtype {array.dtype.str}", why=str(error), hint="cast it in the source"
            ) from error

    def export(self, value: Any, *, borrow: bool) -> Export:
        """As in `Framework`."""
        tensor: torch.Tensor = value.detach()
        if tensor.device.type != "cpu":
            raise UsageError(
                f"a tensor on {tensor.device} cannot be drained",
                why="this version drains the CPU and simulated devices",
                hint="move it with .cpu() first",
            )
        try:
            array = tensor.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise UsageError(
                f"a tensor of {tensor.dtype}, layout {tensor.layout}, has no NumPy form",
                why=str(error),
                hint="cast it first, as with .float()",
            ) from error
        return Export(array.shape, array.dtype, Fence.EMPTY, stable=borrow, read=lambda: array)
