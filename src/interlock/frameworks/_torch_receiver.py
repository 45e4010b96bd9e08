"""Batches in PyTorch's own allocator on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock._core._handover import Leaf

_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
"""What NumPy (and ml_dtypes) calls by the same name."""


@final
class TorchAllocator:
    """As in `Allocator`: PyTorch's caching allocator.

    Args:
        index: Number of the device.
        handle: The copy stream.
    """

    def __init__(self, index: int, handle: int) -> None:
        self._device = torch.device("cuda", index)
        self._copying = torch.cuda.ExternalStream(handle, device=self._device)  # type: ignore[no-untyped-call]

    def allocate(self, size_bytes: int, *, copying: bool) -> torch.Tensor:
        """As in `Allocator`.

        Raises:
            torch.OutOfMemoryError: As PyTorch says it.
        """
        if not copying:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        with torch.cuda.stream(self._copying):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def address(self, root: torch.Tensor) -> int:
        """As in `Allocator`."""
        return root.data_ptr()

    def arrays(self, root: torch.Tensor, leaves: Sequence[Leaf]) -> list[torch.Tensor]:
        """As in `Allocator`."""
        return [_view(root, leaf) for leaf in leaves]

    def current(self) -> tuple[int, object]:
        """As in `Allocator`."""
        stream = torch.cuda.current_stream(self._device)
        return stream.cuda_stream, stream

    def lend(self, root: torch.Tensor) -> None:
        """As in `Allocator`, by `record_stream`."""
        root.record_stream(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """As in `Allocator`: nothing is kept."""


def _view(root: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    dtype = _DTYPES.get(leaf.dtype.name)
    if dtype is None:
        raise UsageError(f"torch has no tensor of {leaf.label}'s dtype {leaf.dtype}", hint="cast it in the source")
    part = root[leaf.offset_bytes : leaf.offset_bytes + leaf.size_bytes]
    # Views share a version counter: without `.data` a change of one leaf in place would spoil the backward pass through
    # another.
    return part.view(dtype).view(leaf.shape).data
