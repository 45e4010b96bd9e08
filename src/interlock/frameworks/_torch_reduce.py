"""Outputs made smaller by PyTorch, where they lie and in the order of the current stream, before they are drained."""

from __future__ import annotations

import torch

from interlock.frameworks._numpy_reduce import CODES, SMALLEST_SCALE


def cast(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return `value` with another element type; raises TypeError if torch has none of that name."""
    wanted = getattr(torch, dtype, None)
    if not isinstance(wanted, torch.dtype):
        raise TypeError(f"this version of torch has no {dtype}")
    return value.detach().to(wanted)


def top_k(value: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of the last axis, largest first, and where they are, int32."""
    values, indices = torch.topk(value.detach(), count, dim=-1)
    return values, indices.to(torch.int32)


def argmax(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return where the largest of the last axis is."""
    return cast(value.detach().argmax(dim=-1), dtype)


def quantize(value: torch.Tensor, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes of the last axis, and for each vector of it the scale and, for uint8, the zero, float32."""
    value = value.detach().to(torch.float32)
    low, high = value.amin(-1, keepdim=True), value.amax(-1, keepdim=True)
    zero = torch.zeros_like(low) if dtype == "int8" else low
    scale = torch.maximum(high, -low) / 127 if dtype == "int8" else (high - low) / 255
    whole = torch.isfinite(scale)
    scale = scale.masked_fill(scale < SMALLEST_SCALE, 0).masked_fill(~whole, torch.nan)
    has_steps = scale > 0
    steps = torch.round((value - zero) / torch.where(has_steps, scale, 1))
    codes = steps.clamp(*CODES[dtype]).masked_fill(~has_steps, 0).to(getattr(torch, dtype))
    return codes, scale[..., 0], zero.masked_fill(~whole, torch.nan)[..., 0]
