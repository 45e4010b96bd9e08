"""Outputs made smaller by PyTorch, where they lie and in the order of the current stream, before they are drained."""

from __future__ import annotations

import torch


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
