"""Autocast: what is asked for `cuda` is done for the CPU, which is where device tensors really are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from interlock.check._simulate._patching import Patches


def _on_cpu(original: Any) -> Any:
    def answer(device_type: Any = None, *rest: Any) -> Any:
        if device_type is None:
            return original("cpu")
        return original("cpu" if device_type == "cuda" else device_type, *rest)

    return answer


def patch_amp(patches: Patches) -> None:
    """Let autocast for `cuda` act on device tensors."""
    original = torch.amp.autocast_mode.autocast.__init__
    cpu_dtype = torch.get_autocast_dtype("cpu")
    del cpu_dtype

    def start(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:  # noqa: FBT001, FBT002 - as in PyTorch
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.float16 if dtype is None else dtype
        original(self, device_type, dtype, enabled, cache_enabled)

    patches.set(torch.amp.autocast_mode.autocast, "__init__", start)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        patches.present(torch, name, _on_cpu(getattr(torch, name)))
    patches.present(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))
    patches.present(torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype("cpu", dtype))
