"""`torch.cuda` and `torch.accelerator` as programs see them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from interlock.check._simulate._torch_streams import Event, Stream, StreamContext, check_device, streams
from interlock.check._simulate._torch_tensor import CUDA

if TYPE_CHECKING:
    from interlock.check._simulate._engine import Engine
    from interlock.check._simulate._patching import Patches

_MEMORY_OF_ALL = {
    *("memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("reset_accumulated_memory_stats", "reset_peak_memory_stats"),
}
"""What `torch.accelerator` has of `torch.cuda`."""
TOTAL_BYTES = 80 << 30
NAME = "Interlock simulated device"
_UUID = "00000000-0000-0000-0000-000000000000"


class DeviceGuard:
    """`torch.cuda.device(...)`: there is one device, so it only checks.

    Args:
        device: Which.
    """

    def __init__(self, device: Any) -> None:
        check_device(getattr(device, "device", device) if isinstance(device, torch.Tensor) else device)
        self.idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


_RealGenerator = torch.Generator


class _AnyGenerator(type(_RealGenerator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RealGenerator)


class Generator(_RealGenerator, metaclass=_AnyGenerator):
    """`torch.Generator`: one for `cuda` is really one of the CPU, so that results are those of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make one."""
        kind = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if kind.type != "cuda":
            return _RealGenerator(device)
        check_device(kind)
        return super().__new__(cls, "cpu")  # type: ignore[call-arg] # the stub says less

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """`cuda:0`."""
        return CUDA


def _properties() -> SimpleNamespace:
    return SimpleNamespace(
        name=NAME, major=9, minor=0, total_memory=TOTAL_BYTES, multi_processor_count=132, is_integrated=False,
        uuid=_UUID, is_multi_gpu_board=False, warp_size=32, max_threads_per_multi_processor=2048, gcnArchName="",
        L2_cache_size=50 << 20, regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472, max_threads_per_block=1024, pci_bus_id=0, pci_device_id=0,
        pci_domain_id=0,
        clock_rate=1_000_000, memory_clock_rate=1_000_000, memory_bus_width=5120,
    )  # fmt: skip


def _statistics(engine: Engine) -> dict[str, int]:
    engine.sweep()
    found: dict[str, int] = {}
    for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        for pool in ("all", "large_pool", "small_pool"):
            found[f"{kind}.{pool}.current"] = engine.allocated_bytes
            found[f"{kind}.{pool}.peak"] = engine.peak_bytes
            found[f"{kind}.{pool}.allocated"] = found[f"{kind}.{pool}.freed"] = engine.peak_bytes
    return {**found, "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0}


def _allocated(engine: Engine) -> int:
    engine.sweep()
    return engine.allocated_bytes


def _reset_peak(engine: Engine) -> None:
    engine.sweep()
    engine.peak_bytes = engine.allocated_bytes


def _set_stream(engine: Engine, stream: Stream | None) -> None:
    if stream is not None:
        engine.stream = stream.queue


def _checked(value: Any) -> Any:
    def answer(device: Any = None) -> Any:
        check_device(device)
        return value

    return answer


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _random() -> dict[str, Any]:
    """The device draws from the generator of the CPU, so that results are those of a run on the CPU."""
    generator = torch.default_generator
    return {
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda device=None: generator.get_state(),  # noqa: ARG005 - as in PyTorch
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda new_state, device=None: generator.set_state(new_state),  # noqa: ARG005
        "set_rng_state_all": lambda new_states: generator.set_state(next(iter(new_states))),
    }


def _devices() -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "_lazy_call": lambda callable_, **_: callable_(),
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "current_device": lambda: 0,
        "set_device": check_device,
        "device": DeviceGuard,
        "device_of": DeviceGuard,
        "_DeviceGuard": DeviceGuard,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
        "get_device_name": _checked(NAME),
        "get_device_capability": _checked((9, 0)),
        "get_device_properties": _checked(_properties()),
        "get_arch_list": lambda: ["sm_90"],
        "get_gencode_flags": lambda: "",
        "can_device_access_peer": lambda *_: False,
        "is_bf16_supported": lambda including_emulation=True: True,  # noqa: ARG005
        "is_tf32_supported": lambda: True,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": _nothing,
        "utilization": _checked(0),
        "memory_usage": _checked(0),
        "temperature": _checked(30),
        "power_draw": _checked(100_000),
        "clock_rate": _checked(1000),
        "ipc_collect": _nothing,
        "cudart": lambda: SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0),
        "_sleep": _nothing,
    }


def _memory(engine: Engine) -> dict[str, Any]:
    return {
        "empty_cache": engine.sweep,
        "memory_allocated": lambda device=None: _allocated(engine),  # noqa: ARG005
        "max_memory_allocated": lambda device=None: engine.peak_bytes,  # noqa: ARG005
        "memory_reserved": lambda device=None: _allocated(engine),  # noqa: ARG005
        "max_memory_reserved": lambda device=None: engine.peak_bytes,  # noqa: ARG005
        "memory_cached": lambda device=None: _allocated(engine),  # noqa: ARG005
        "max_memory_cached": lambda device=None: engine.peak_bytes,  # noqa: ARG005
        "memory_stats": lambda device=None: _statistics(engine),  # noqa: ARG005
        "memory_stats_as_nested_dict": lambda device=None: {},  # noqa: ARG005
        "memory_summary": lambda device=None, abbreviated=False: "simulated",  # noqa: ARG005
        "memory_snapshot": lambda *_, **__: [],
        "mem_get_info": lambda device=None: (TOTAL_BYTES - _allocated(engine), TOTAL_BYTES),  # noqa: ARG005
        "reset_peak_memory_stats": lambda device=None: _reset_peak(engine),  # noqa: ARG005
        "reset_max_memory_allocated": lambda device=None: _reset_peak(engine),  # noqa: ARG005
        "reset_max_memory_cached": lambda device=None: _reset_peak(engine),  # noqa: ARG005
        "reset_accumulated_memory_stats": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "list_gpu_processes": lambda device=None: "",  # noqa: ARG005
        "_record_memory_history": _nothing,
        "_dump_snapshot": _nothing,
    }


def _queues(engine: Engine) -> dict[str, Any]:
    def synchronize(device: Any = None) -> None:
        check_device(device)
        engine.finish_all("the device")

    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": lambda stream_ptr, device=None: Stream(device, stream_ptr=stream_ptr),
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "current_stream": lambda device=None: Stream.of(engine.stream),  # noqa: ARG005
        "default_stream": lambda device=None: Stream.of(engine.default),  # noqa: ARG005
        "set_stream": lambda stream: _set_stream(engine, stream),
        "get_stream_from_external": lambda data_ptr, device=None: Stream(device, stream_ptr=data_ptr),
        "synchronize": synchronize,
        "is_current_stream_capturing": lambda: Stream.of(engine.stream).is_capturing(),
    }


def _accelerator(engine: Engine) -> dict[str, Any]:
    queues, memory = _queues(engine), _memory(engine)
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": check_device,
        "set_device_idx": check_device,
        "device_index": DeviceGuard,
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},  # noqa: ARG005
        "current_stream": queues["current_stream"],
        "set_stream": queues["set_stream"],
        "synchronize": queues["synchronize"],
        "empty_cache": engine.sweep,
        **{name: value for name, value in memory.items() if name in _MEMORY_OF_ALL},
        "get_memory_info": memory["mem_get_info"],
    }  # fmt: skip


def patch_cuda(patches: Patches, engine: Engine) -> None:
    """Replace what `torch.cuda`, `torch.accelerator` and `torch.Stream` say."""
    cuda: Any = torch.cuda
    for name, value in {**_devices(), **_random(), **_memory(engine), **_queues(engine)}.items():
        patches.present(cuda, name, _own(value))
    for name, value in {**_memory(engine)}.items():
        patches.present(cuda.memory, name, _own(value))
    for name, value in _random().items():
        patches.present(cuda.random, name, _own(value))
    for name in ("Stream", "Event", "ExternalStream"):
        patches.present(cuda.streams, name, getattr(cuda, name))
    patches.set(cuda, "default_generators", (torch.default_generator,))
    patches.set(cuda, "has_cuda", True)  # noqa: FBT003 - an attribute
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is not None:
        for name, value in _accelerator(engine).items():
            patches.present(accelerator, name, _own(value))
        if hasattr(accelerator, "memory"):
            for name, value in _accelerator(engine).items():
                patches.present(accelerator.memory, name, _own(value))
    patches.set(torch, "Stream", Stream)
    patches.set(torch, "Event", Event)
    patches.set(torch.version, "cuda", torch.version.cuda or "12.8")
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.present(torch.backends.cudnn, "is_acceptable", lambda _tensor: False)
    _patch_c(patches)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.present(cuda.nvtx, name, lambda *_, **__: 0)
    patches.present(cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext())
    patches.present(cuda.profiler, "start", _nothing)
    patches.present(cuda.profiler, "stop", _nothing)


def _own(value: Any) -> Any:
    """Return a function of its own for each name: PyTorch's compiler keeps tables of functions by identity."""
    if isinstance(value, type):
        return value

    def function(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    return function


def _patch_c(patches: Patches) -> None:
    """Replace the C functions that PyTorch's own Python code calls past `torch.cuda`."""
    c: Any = torch._C  # noqa: SLF001 - as the docstring says
    answers = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": _nothing,
        "_cuda_isCurrentStreamCapturing": lambda: streams().engine.capture is not None,
        "_cuda_getCurrentRawStream": lambda _=0: streams().handle(streams().engine.stream),
        "_cuda_emptyCache": _nothing,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": _nothing,
        "_get_accelerator": lambda *_: torch.device("cuda"),
    }
    for name, value in answers.items():
        patches.set(c, name, value)
