"""Copies between host and device, with the rules that CUDA has for pinned and pageable memory.

| copy | `non_blocking=True` | otherwise |
| --- | --- | --- |
| pinned host to device | the source is read when the stream gets there | the host waits |
| pageable host to device | the source is read at the call | the host waits |
| device to pinned host | lands when the stream gets there | the host waits |
| device to pageable host | the host waits | the host waits |

A copy to the host poisons its target at the call if nothing queued still needs the old bytes: from then on nobody may
look at them anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from interlock._core._fence import Fence
from interlock.check._simulate._torch_hosts import same, shown
from interlock.check._simulate._torch_tensor import SimTensor, check_supported, poison, wrap_new

if TYPE_CHECKING:
    from interlock._core._events import Region
    from interlock.check._simulate._hosts import HostBlock
    from interlock.check._simulate._torch_dispatch import Dispatcher
    from interlock.check._simulate._torch_hosts import Hosts

Tensor = torch.Tensor
aten = torch.ops.aten
_copy = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one


def _one(region: Region | None) -> tuple[Region, ...]:
    return () if region is None else (region,)


@final
class Copies:
    """Copies of one simulation."""

    def __init__(self, dispatcher: Dispatcher, hosts: Hosts) -> None:
        self.dispatcher = dispatcher
        self.hosts = hosts
        self.engine = dispatcher.engine

    # ------------------------------------------------------------ to the device

    def to_device(
        self, source: Tensor, *, dtype: Any = None, non_blocking: bool = False, layout: Any = None
    ) -> SimTensor:
        """Return a new device tensor with the values of a plain CPU tensor."""
        check_supported(source, "to('cuda')", self.engine)
        shape = torch.empty_like(
            source, dtype=dtype, device="cpu", pin_memory=False, memory_format=layout or torch.preserve_format
        )
        target = wrap_new(self.engine, shape, self.engine.stream)
        self.fill_device(target, source, non_blocking=non_blocking)
        return target

    def fill_device(self, target: SimTensor, source: Tensor, *, non_blocking: bool) -> None:
        """Queue the copy of a plain CPU tensor to a device tensor."""
        engine, queue = self.engine, self.engine.stream
        block = self.hosts.find(source)
        pinned = block is not None and block.pinned
        direct = source.is_contiguous() and source.shape == target.shape
        capture = engine.capture
        if capture is not None and capture.covers(queue):
            capture.copy_in(self, target, source, non_blocking=non_blocking)
            return
        expected = self.hosts.expected(source)
        _copy(target.oracle, expected)
        if non_blocking and not (pinned and direct):
            self.hosts.touched(source, "read", "aten::copy_")  # staged at the call
            self._queue_in(target, source.clone(), None, None)
            return
        value = expected.clone() if expected is source and pinned and non_blocking else expected
        self._queue_in(target, source.detach(), block, value)
        if not non_blocking:
            engine.finish(queue, "a copy to the device")

    def _queue_in(self, target: SimTensor, source: Tensor, block: HostBlock | None, value: Tensor | None) -> None:
        """Queue the copy; page-locked memory is read when the stream gets there, and compared with `value`."""
        cell, queue = target.cell, self.engine.stream
        region = self.hosts.region(source, block) if block is not None else None
        touched = [*_one(region), *_one(target.region)]

        def run() -> None:
            _copy(cell.get(), source)
            if region is not None and value is not None and value is not source and not same(source, value):
                message = f"the copy took {shown(source)} from the host, a correct run takes {shown(value)}"
                self._tell(touched, message)

        tick = self.dispatcher.submit(queue, run, "aten::copy_", [target], [target], host_reads=_one(region))
        if block is not None and region is not None:
            block.use(Fence([(queue, tick)]))

    # ------------------------------------------------------------ to the host

    def to_host(
        self, source: SimTensor, *, dtype: Any = None, non_blocking: bool = False, layout: Any = None
    ) -> Tensor:
        """Return a new plain CPU tensor for the values of a device tensor; pinned if they may land later."""
        target = torch.empty_like(
            source.oracle, dtype=dtype, device="cpu", memory_format=layout or torch.preserve_format
        )
        if target.numel() == 0:
            return target
        if non_blocking:
            self.hosts.pin(target)
        poison(target)
        self.fill_host(target, source, non_blocking=non_blocking, fresh=True)
        return target

    def fill_host(self, target: Tensor, source: SimTensor, *, non_blocking: bool, fresh: bool = False) -> None:
        """Queue the copy of a device tensor to a plain CPU tensor."""
        if target.numel() == 0:
            return
        engine, queue = self.engine, self.engine.stream
        block = self.hosts.find(target)
        pinned = block is not None and block.pinned
        capture = engine.capture
        if capture is not None and capture.covers(queue):
            if not (non_blocking and pinned):
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            capture.copy_out(self, target, source)
            return
        region = self.hosts.region(target, block) if block is not None else None
        value = _copy(torch.empty_like(target), source.oracle)
        cell, landed = source.cell, target.detach()
        later = non_blocking and pinned and target.is_contiguous()
        if block is not None and later and not fresh and not block.is_used():
            landed.view(-1).view(torch.uint8).fill_(0xFF)

        def run() -> None:
            _copy(landed, cell.get())
            if not same(landed, value):
                self.wrong([*_one(source_region), *_one(region)], landed, value)

        source_region = source.region
        tick = self.dispatcher.submit(queue, run, "aten::copy_", [source], [], host_writes=_one(region))
        fence = Fence([(queue, tick)])
        if block is not None and later:
            block.use(fence)
            self.hosts.land(target, block, value, fence)
        else:
            engine.finish(queue, "a copy to the host")

    def wrong(self, touched: list[Region], found: Tensor, value: Tensor) -> None:
        """Tell of a wrong value that left the device."""
        self._tell(touched, f"{shown(found)} left the device, a correct run gives {shown(value)}")

    def _tell(self, touched: list[Region], message: str) -> None:
        for region in touched:
            self.engine.session.witness(region, message)
        self.engine.session.diverged(message)

    # ------------------------------------------------------------ operators

    def copy_(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`aten::copy_` with a device tensor on one side at least."""
        target, source = args[0], args[1]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))  # noqa: PLR2004
        if isinstance(target, SimTensor):
            if isinstance(source, SimTensor):
                return self.dispatcher.run(func, args, {})
            self.fill_device(target, source, non_blocking=non_blocking)
        else:
            self.fill_host(target, source.expand(target.shape), non_blocking=non_blocking)
        return target

    def to_copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`aten::_to_copy`: a new tensor, on the same side or the other."""
        source, options = args[0], dict(kwargs)
        device = options.pop("device", None)
        non_blocking = bool(options.pop("non_blocking", False))
        pin = options.pop("pin_memory", False)
        here = isinstance(source, SimTensor)
        # Composite operators and gradients say `cpu` and mean the device, for them it is the same. Programs that move
        # a tensor to the host come in by `Tensor.to`.
        there = here or (device is not None and device.type == "cuda")
        if here and device is not None and device.type == "meta":
            return torch.empty_like(source.oracle, device="meta", dtype=options.get("dtype"))
        layout, dtype = options.get("memory_format"), options.get("dtype")
        if here:
            return self.dispatcher.run(func, args, options)
        if there:
            return self.to_device(source, dtype=dtype, non_blocking=non_blocking, layout=layout)
        result = self.hosts.run(func, args, {**options, "device": device} if device is not None else options)
        return self.hosts.pin(result) if pin else result

    def foreach_copy_(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`aten::_foreach_copy_`: pair by pair."""
        del func
        for target, source in zip(args[0], args[1], strict=True):
            sides = isinstance(target, SimTensor), isinstance(source, SimTensor)
            operation = self.copy_ if any(sides) else self.hosts.run
            operation(aten.copy_.default, (target, source, *args[2:]), kwargs)
